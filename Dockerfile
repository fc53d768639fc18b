# The daemon as an image: docker build -t eplb . && docker run -v ./configs/mixed.yaml:/etc/eplb/config.yaml:ro -p 8790:8790 eplb
# Settings can also come from EPLB_* variables (see configs/mixed.yaml). The image holds no torch: ranks run elsewhere.

FROM python:3.12-slim AS builder
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY placement/ placement/
COPY collectors/ collectors/
COPY eplb/ eplb/
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
 && python -m venv /opt/eplb \
 && /opt/eplb/bin/pip install --no-cache-dir --constraint constraints.txt "$(ls /wheels/*.whl)[daemon]" \
 && /opt/eplb/bin/python -c "import placement as p; p.compile_kernels(); p.compile_kernels('optimal')"

FROM python:3.12-slim AS runtime
COPY --from=builder /opt/eplb /opt/eplb
ENV PATH=/opt/eplb/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A number, so that Kubernetes can see that it is not root (runAsNonRoot).
USER 10001:10001
EXPOSE 8790
# Set another port through EPLB_HTTP__PORT rather than in the file, so that the check below follows.
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ.get('EPLB_HTTP__PORT', '8790') + '/livez', timeout=4)"]
ENTRYPOINT ["eplb"]
CMD ["run", "--config", "/etc/eplb/config.yaml"]
