# Octavo's images. Three targets:
#
#   octavo-core          gateway, KV manager and every client command; no torch
#   octavo-executor      the same plus torch: one more layer on the same ones
#   octavo-executor-gpu  that one plus a C compiler, with which Triton builds what launches its kernels
#
#   docker build --target octavo-executor -t octavo-executor .
#
# TORCH_INDEX names one more package index to look for torch in. Without it torch comes from the index that pip is set to use;
# PyPI's build for Linux brings CUDA and Triton and serves CPUs and NVIDIA GPUs alike. PyTorch's index of CPU wheels makes
# the image several GB smaller; octavo-executor-gpu is built without it.
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS core-dependencies
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/octavo
ENV PATH=/opt/octavo/bin:$PATH
WORKDIR /build
COPY pyproject.toml constraints.txt deploy/requirements.py ./
RUN python requirements.py vllm > core.txt && pip install --quiet -c constraints.txt -r core.txt

# What the executor needs beyond that, alone in /layer: files that the environment did not have before.
FROM core-dependencies AS executor-dependencies
ARG TORCH_INDEX=
RUN find /opt/octavo ! -type d | sort > before \
 && python requirements.py executor > executor.txt \
 && pip install --quiet ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -c constraints.txt -r executor.txt \
 && find /opt/octavo ! -type d | sort | comm -13 before - > added \
 && mkdir /layer && xargs -d '\n' cp --link --parents -t /layer < added

# Octavo itself, likewise; its kernels for CPUs are compiled here, and chosen by the CPU where they run.
FROM core-dependencies AS octavo
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . .
RUN find /opt/octavo ! -type d | sort > before \
 && pip install --quiet --no-deps . \
 && find /opt/octavo ! -type d | sort | comm -13 before - > added \
 && mkdir /layer && xargs -d '\n' cp --link --parents -t /layer < added

# /models and /cache are made here so that volumes mounted on them belong to the user that runs.
FROM ${PYTHON_IMAGE} AS core-runtime
RUN groupadd --gid 10001 octavo && useradd --uid 10001 --gid octavo --no-create-home --home-dir /tmp --shell /usr/sbin/nologin octavo \
 && install -d -o octavo -g octavo /models /cache
ENV PATH=/opt/octavo/bin:$PATH \
    OCTAVO_CACHE=/models \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
COPY --from=core-dependencies /opt/octavo /opt/octavo

FROM core-runtime AS executor-runtime
COPY --from=executor-dependencies /layer /

FROM executor-runtime AS octavo-executor
COPY --from=octavo /layer /
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["octavo"]
CMD ["executor"]

# Triton compiles where it runs: kernels for the GPU at hand, and a Python extension that launches them, for which it
# needs Python's headers too. What it has compiled is kept on the volume of /cache.
FROM executor-runtime AS executor-gpu-runtime
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/* \
 && test -f "$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h"
ENV TRITON_CACHE_DIR=/cache/triton \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM executor-gpu-runtime AS octavo-executor-gpu
COPY --from=octavo /layer /
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["octavo"]
CMD ["executor"]

FROM core-runtime AS octavo-core
COPY --from=octavo /layer /
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["octavo"]
CMD ["--help"]
