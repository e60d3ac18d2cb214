# The gateway, and with `engine` as its command the emulated replicas. Versions are those of requirements.lock.
# Python 3.13 took the least CPU of those tested (docs/operations.md#sizing).
FROM python:3.13-slim AS build
WORKDIR /src
COPY requirements.lock ./
RUN sed -e '/--hash=/d' -e 's/ *\\$//' requirements.lock > /constraints.txt
COPY pyproject.toml README.md LICENSE ./
COPY extproc extproc
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir --constraint /constraints.txt .

FROM python:3.13-slim
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1
USER 65534:65534
EXPOSE 50051 9095
ENTRYPOINT ["kvsteer"]
CMD ["serve", "-c", "/etc/kvsteer/kvsteer.yaml"]
