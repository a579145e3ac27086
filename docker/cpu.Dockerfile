# docker build -f docker/cpu.Dockerfile -t dyg-mamba .
# docker run --rm --read-only --tmpfs /tmp -v "$PWD:/work" --user "$(id -u):$(id -g)" dyg-mamba data import mail.csv
FROM python:3.13-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/dygmamba
WORKDIR /source
COPY constraints.txt ./
# torch first: it changes least and is the largest layer
RUN /opt/dygmamba/bin/pip install -c constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu torch
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN /opt/dygmamba/bin/pip install -c constraints.txt . && find /opt/dygmamba -name __pycache__ -prune -exec rm -r {} +

FROM python:3.13-slim
COPY --from=build /opt/dygmamba /opt/dygmamba
RUN useradd --create-home --uid 1000 dygmamba
# caches of compiled kernels go to /tmp, so that the root may be read-only and any user may run it
ENV PATH=/opt/dygmamba/bin:$PATH \
    DYGMAMBA_DATA=/work/data HOME=/tmp USER=dygmamba \
    XDG_CACHE_HOME=/tmp/cache NUMBA_CACHE_DIR=/tmp/cache/numba TORCHINDUCTOR_CACHE_DIR=/tmp/cache/torch \
    PYTHONDONTWRITEBYTECODE=1
USER 1000
WORKDIR /work
ENTRYPOINT ["dygmamba"]
CMD ["--help"]
