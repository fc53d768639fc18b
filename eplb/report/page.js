"use strict";
(function () {
  function output(plot) {
    return plot.closest("figure").querySelector("output");
  }
  function clamp(value, most) {
    return Math.max(0, Math.min(most, value));
  }
  function steps(event) {
    return { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-Infinity, 0], End: [Infinity, 0] }[event.key];
  }
  function watch(plot, show, count, point) {
    let at = [0, 0];
    let fresh = true;
    function go(next) {
      at = [clamp(next[0], count[0] - 1), clamp(next[1], count[1] - 1)];
      show(at);
    }
    plot.addEventListener("keydown", function (event) {
      const step = steps(event);
      if (!step) return;
      event.preventDefault();
      go(fresh ? at : [at[0] + step[0], at[1] + step[1]]);
      fresh = false;
    });
    plot.addEventListener("pointermove", function (event) {
      const box = plot.getBoundingClientRect();
      fresh = false;
      go(point((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height));
    });
  }
  function lines(plot) {
    const readings = JSON.parse(plot.dataset.readings);
    if (!readings.length) return;
    const cursor = plot.querySelector(".cursor");
    function show(at) {
      cursor.hidden = false;
      cursor.style.left = readings[at[0]][0] + "%";
      output(plot).textContent = readings[at[0]][1];
    }
    function point(x) {
      let best = 0;
      readings.forEach(function (each, place) {
        if (Math.abs(each[0] - 100 * x) < Math.abs(readings[best][0] - 100 * x)) best = place;
      });
      return [best, 0];
    }
    watch(plot, show, [readings.length, 1], point);
  }
  function heat(plot) {
    const rows = JSON.parse(plot.dataset.rows);
    const columns = JSON.parse(plot.dataset.columns);
    const values = plot.dataset.values;
    const cursor = plot.querySelector(".cursor");
    function words(code) {
      const value = parseInt(code, 36);
      if (code === "zz") return "the layer has no tokens";
      if (value === 0) return "no tokens, or next to none";
      return (value === 1294 ? "at least " : "") + (value / 100).toFixed(2) + " × the mean";
    }
    function show(at) {
      const place = 2 * (at[1] * columns.length + at[0]);
      cursor.hidden = false;
      cursor.style.left = (100 * at[0]) / columns.length + "%";
      cursor.style.top = (100 * at[1]) / rows.length + "%";
      cursor.style.width = 100 / columns.length + "%";
      cursor.style.height = 100 / rows.length + "%";
      output(plot).textContent = rows[at[1]] + ", " + columns[at[0]] + ": " + words(values.slice(place, place + 2));
    }
    function point(x, y) {
      return [Math.floor(x * columns.length), Math.floor(y * rows.length)];
    }
    watch(plot, show, [columns.length, rows.length], point);
  }
  document.querySelectorAll(".plot.lines").forEach(lines);
  document.querySelectorAll(".plot.heat").forEach(heat);
})();
