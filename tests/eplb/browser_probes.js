// Questions that the tests put to a page; each is a function of the window it runs in.
({
  // Text that stands in the page and can be seen: [element, rectangle of one of its lines].
  lines() {
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode;
      const element = node.parentElement;
      if (!node.data.trim() || element.closest("script, style, .unseen, .skip, [hidden]")) continue;
      if (!element.checkVisibility()) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      const frame = element.closest(".scroll")?.getBoundingClientRect();
      for (const box of range.getClientRects()) {
        if (box.width < 1 || (frame && (box.left > frame.right - 1 || box.right < frame.left + 1))) continue;
        found.push([element, box]);
      }
    }
    return found;
  },

  // Pairs of texts that lie on each other.
  overlaps() {
    const lines = this.lines().sort((one, two) => one[1].top - two[1].top);
    const found = [];
    lines.forEach(([element, box], at) => {
      for (let next = at + 1; next < lines.length && lines[next][1].top < box.bottom - 2; next++) {
        const [other, two] = lines[next];
        if (other === element || other.contains(element) || element.contains(other)) continue;
        if (box.left < two.right - 1 && two.left < box.right - 1) found.push([element.textContent, other.textContent]);
      }
    });
    return found;
  },

  // Texts that reach beyond the window.
  outside() {
    return this.lines()
      .filter(([element, box]) => !element.closest(".scroll") && (box.left < 0 || box.right > innerWidth))
      .map(([element]) => element.textContent);
  },

  // Texts with less contrast to what is behind them than WCAG 2.2 AA asks: 4.5, or 3 for large text.
  faint() {
    const channels = (text) => text.match(/[\d.]+/g).map(Number);
    const light = (colour) => {
      const [r, g, b] = colour.slice(0, 3).map((each) => {
        const part = each / 255;
        return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
      });
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
      for (let at = element; at; at = at.parentElement) {
        const colour = channels(getComputedStyle(at).backgroundColor);
        if (colour.length === 3 || colour[3] === 1) return colour;
      }
      return [255, 255, 255];
    };
    const found = [];
    for (const element of new Set(this.lines().map(([each]) => each))) {
      const style = getComputedStyle(element);
      const [one, two] = [light(channels(style.color)), light(behind(element))];
      const contrast = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
      const size = parseFloat(style.fontSize);
      const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
      if (contrast < (large ? 3 : 4.5)) found.push([element.textContent, contrast, style.color]);
    }
    return found;
  },

  smallest() {
    return Math.min(...this.lines().map(([element]) => parseFloat(getComputedStyle(element).fontSize)));
  },
})
