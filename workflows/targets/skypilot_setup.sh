# On every node, once: the training stack at the pinned versions; what the image has of it stays.
set -euo pipefail
python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' ||
    { echo "setup: python3 is $(python3 -V), and the training stack needs 3.12: choose another skypilot.image" >&2; exit 78; }
command -v uv >/dev/null || python3 -m pip install --quiet --break-system-packages uv
OVERRIDES=()
if [[ $EXTRA == cpu ]]; then OVERRIDES=(--overrides constraints/overrides-cpu.txt); fi
uv pip install --quiet --system --break-system-packages -r pyproject.toml --extra "$EXTRA" \
    -c "constraints/$EXTRA.txt" "${OVERRIDES[@]}"
