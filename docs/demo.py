#!/usr/bin/env python3
"""Records `uwarp demo` as docs/demo.svg, the picture of README.md.

    cargo build --release
    docs/demo.py [COMMAND]        # target/release/uwarp if not given

The text is the command's real output. The pace is not: the command takes about a second, and the
picture shows LINES_PER_SECOND. It plays once and then rests on the last screen. A viewer
without CSS animations, or with reduced motion, shows that screen from the beginning.
"""

import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
COLUMNS, ROWS = 104, 24
LINES_PER_SECOND = 8
# Pixels: width of a character, height of a line, margin, and the bar at the top of the window.
CELL, LEADING, MARGIN, BAR = 8, 18, 16, 32


def style_of(line):
    """CSS class of a line: prompt, section heading, result or plain output."""
    if line.startswith("$ "):
        return "prompt"
    if line[:1].isdigit() and line[1:3] == ". ":
        return "heading"
    if "ok, " in line or line.startswith("All results "):
        return "good"
    return "plain"


def text(line, row):
    """One line as an SVG text. `textLength` keeps the columns straight in every font."""
    words = line.lstrip(" ")
    if not words:
        return ""
    x = MARGIN + CELL * (len(line) - len(words))
    y = LEADING * row + 14
    return (
        f'<text class="{style_of(line)}" x="{x}" y="{y}" textLength="{CELL * len(words)}"'
        f' style="animation-delay:{row / LINES_PER_SECOND}s" xml:space="preserve">'
        f"{escape(words)}</text>\n"
    )


def scroll(count):
    """Keyframes that move the lines up, one at a time, when the screen is full."""
    frames = ["0%{transform:translateY(0)}"]
    for row in range(ROWS, count):
        percent = 100 * row / count
        frames.append(f"{percent:.2f}%{{transform:translateY({-LEADING * (row + 1 - ROWS)}px)}}")
    return "".join(frames)


def svg(lines):
    count = len(lines)
    width = 2 * MARGIN + CELL * COLUMNS
    height = BAR + LEADING * ROWS + MARGIN
    end = LEADING * max(0, count - ROWS)
    seconds = count / LINES_PER_SECOND
    body = "".join(text(line, row) for row, line in enumerate(lines))
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>uwarp demo in a terminal: {escape(lines[-1])}</title>
<style>
text{{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}}
.plain{{fill:#c9d1d9}}.prompt{{fill:#fff;font-weight:bold}}.heading{{fill:#79c0ff;font-weight:bold}}.good{{fill:#7ee787}}
text{{animation:show .01s backwards}}
#lines{{animation:scroll {seconds:.1f}s step-end}}
@keyframes show{{from{{visibility:hidden}}}}
@keyframes scroll{{{scroll(count)}}}
@media (prefers-reduced-motion:reduce){{text,#lines{{animation:none}}}}
</style>
<defs><clipPath id="screen"><rect y="0" width="{width}" height="{LEADING * ROWS + 4}"/></clipPath></defs>
<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>
<circle cx="20" cy="16" r="5" fill="#ff5f57"/><circle cx="38" cy="16" r="5" fill="#febc2e"/><circle cx="56" cy="16" r="5" fill="#28c840"/>
<g transform="translate(0 {BAR})"><g clip-path="url(#screen)"><g id="lines" transform="translate(0 {-end})">
{body}</g></g></g>
</svg>
"""


def main():
    command = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "target/release/uwarp")
    said = subprocess.run(
        [command, "demo"], stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    lines = ["$ uwarp demo"] + said.stdout.rstrip("\n").split("\n")
    longest = max(lines, key=len)
    if len(longest) > COLUMNS:
        sys.exit(f"a line has {len(longest)} columns, and the picture has {COLUMNS}: {longest}")
    (ROOT / "docs/demo.svg").write_text(svg(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
