# The server of an index, without the libraries that train:
#                           docker build -t dsi .
#                           docker run -p 8000:8000 -v "$PWD/runs/example:/index:ro" dsi
# Writable: mount /index without :ro (it must belong to user 1000), add -e DSI_TOKEN=…, and append `/index --host 0.0.0.0 --writable`.
FROM python:3.11-slim
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY contrastive contrastive
COPY docids docids
COPY dsi dsi
COPY eval eval
# The second line drops what a server never loads: the Hub's client, which tokenizers asks for, and Arrow's Flight, headers and tests.
RUN pip install --no-cache-dir --constraint constraints.txt --requirement dsi/searching.txt fastapi prometheus-client uvicorn \
  && pip uninstall --yes huggingface-hub hf-xet fsspec && cd "$(python -c 'import pyarrow; print(*pyarrow.__path__)')" \
  && rm -r include tests *flight* && cd /app \
  && pip install --no-cache-dir --no-deps . && useradd --uid 1000 --create-home dsi
USER dsi
ENV HF_HUB_OFFLINE=1
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready', timeout=4)"]
ENTRYPOINT ["dsi", "serve"]
CMD ["/index", "--host", "0.0.0.0"]
