# docker build -f docker/cuda.Dockerfile -t dyg-mamba:cuda .
# docker run --rm --gpus all --read-only --tmpfs /tmp -v "$PWD:/work" --user "$(id -u):$(id -g)" dyg-mamba:cuda data import mail.csv
# torch's wheels bring the CUDA libraries, so the base needs none; the host needs an NVIDIA driver and its container toolkit
FROM python:3.13-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/dygmamba
WORKDIR /source
COPY constraints.txt ./
RUN /opt/dygmamba/bin/pip install -c constraints.txt torch
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN /opt/dygmamba/bin/pip install -c constraints.txt . && find /opt/dygmamba -name __pycache__ -prune -exec rm -r {} +

FROM python:3.13-slim
# Triton compiles its launcher with a C compiler on first use; the base image decides its version
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/dygmamba /opt/dygmamba
RUN useradd --create-home --uid 1000 dygmamba
# caches of compiled kernels go to /tmp, so that the root may be read-only and any user may run it
ENV PATH=/opt/dygmamba/bin:$PATH \
    DYGMAMBA_DATA=/work/data HOME=/tmp USER=dygmamba \
    XDG_CACHE_HOME=/tmp/cache NUMBA_CACHE_DIR=/tmp/cache/numba TORCHINDUCTOR_CACHE_DIR=/tmp/cache/torch \
    TRITON_CACHE_DIR=/tmp/cache/triton NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONDONTWRITEBYTECODE=1
USER 1000
WORKDIR /work
ENTRYPOINT ["dygmamba"]
CMD ["--help"]
