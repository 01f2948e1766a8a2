#!/usr/bin/env python3
"""Cuts the stored vectors of one tiny model down to what a clone carries (2.4 MB at most).

Usage: cut_golden.py SOURCE_FOLDER TARGET_FOLDER
    cut_golden.py golden/vectors/tiny-a build/test-data/golden/vectors/tiny-a
and, with golden/tiny-a beside it, packs as
    XZ_OPT=-9e tar -C build/test-data --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner \\
        -cJf tests/data/tiny-a.tar.xz golden/tiny-a golden/vectors/tiny-a

Tensors are copied byte for byte; nothing is computed. The manifest of the source is reduced to the
tensors kept and says, per file, how many of how many tensors were kept and by which patterns.
Standard library only.
"""
import json
import re
import struct
import sys
from pathlib import Path

BYTES_MAX = 2_400_000

# A tensor is kept when one pattern matches its whole name. Of the trace: what test_forward_blocks
# reads of one layer of each kind (1 window with Engram, 2 full, 3 reuse; in the decoder 5 full with
# candidates, 6 reuse, 7 reindex); that test names these layers too. The streams, whole-row queries
# and Engram values, which are big, of one layer only.
KEEP = {
    "trace.safetensors": [
        r"input_ids",
        r"layers\.[123567]\.(attn|ffn)\.(in|out)",
        r"layers\.[123567]\.router\.(experts|margin|weights)",
        r"layers\.[123567]\.window_kv\.(codes|scales|prequant)",
        r"layers\.[257]\.index\.(selected|margin|scores)",
        r"layers\.[257]\.index\.q\.(codes|scales)",
        r"layers\.[25]\.(index\.k|compress\.entry)\.(codes|scales)",
        r"layers\.5\.(candidate_mask|cand\.margin)",
        r"layers\.1\.engram\.(gate|hash_ids|in|kv|out|rows)",
        r"layers\.[156]\.in\.pre_mix",
        r"layers\.[15]\.hc_attn\.(pre|post|comb)",
        r"layers\.5\.hc_ffn\.(pre|post|comb)",
        r"layers\.5\.(in\.streams|streams_after_attn|streams_after_ffn)",
        r"layers\.2\.attn\.(q|o_rotated)",
        r"decode\.token",
        r"decode\.layers\.[123567]\.(attn|ffn)\.(in|out)",
        r"decode\.layers\.[123567]\.router\.(experts|margin|weights)",
        r"decode\.layers\.[257]\.(attn\.kv_index|index\.scores)",
    ],
    "e2e.safetensors": [r"len(1|2|12|37)\..*"],
    # Logits of drafts are big: ids, margins and confidences stand for them.
    "dspark.safetensors": [
        r"trace\.position",
        r"trace\.mtp\.\d+\.attn\.(in|q|kv_rows|o_rotated|out)",
        r"trace\.mtp\.\d+\.(window_kv\.dequant|in\.pre_mix|ffn\.(in|out))",
        r"trace\.mtp\.\d+\.(hc_attn\.(pre|post|comb)|hc_ffn\.pre)",
        r"trace\.mtp\.\d+\.(router\.(experts|weights)|streams_after_(attn|ffn))",
        r"len(12|37|333)\.(position|token|accepted|drafts|confidence|draft_margin)",
        r"len(12|37)\.rings_after_prompt",
        r"len37\.main_(hidden|x)",
        r"len333\.collapsed_hidden",
    ],
    "engram_hash.safetensors": [r".*"],
    "state.safetensors": [r"len(1|2|12|37)\..*"],
    "replay.safetensors": [
        r"len\d+\.(tokens|narrow\..*)",
        r"len\d+\.[^.]+\.(first_row|last_logits)",
    ],
}
MANIFEST_KEEP = ["model", "margin_row_layers", "units", "teacher_forced_noise_floor"]


def read_tensors(path):
    raw = path.read_bytes()
    (header_bytes,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + header_bytes])
    return header, memoryview(raw)[8 + header_bytes :]


def cut_file(source, target, patterns):
    header, data = read_tensors(source)
    metadata = header.pop("__metadata__", {})
    kept = [n for n in header if any(re.fullmatch(p, n) for p in patterns)]
    unused = [p for p in patterns if not any(re.fullmatch(p, n) for n in header)]
    if unused:
        sys.exit(f"{source.name}: patterns that match nothing: {unused}")
    out = {"__metadata__": {**metadata, "cut": f"{len(kept)} of {len(header)} tensors"}}
    chunks, at = [], 0
    for name in sorted(kept, key=lambda n: header[n]["data_offsets"][0]):
        begin, end = header[name]["data_offsets"]
        out[name] = {**header[name], "data_offsets": [at, at + end - begin]}
        chunks.append(data[begin:end])
        at += end - begin
    text = json.dumps(out, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(chunks))
    return kept, len(header)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    manifest = json.loads((source / "manifest.json").read_text())
    reduced = {key: manifest[key] for key in MANIFEST_KEEP if key in manifest}
    reduced["cut"] = {
        "note": "A part of golden/vectors, made by tests/data/cut_golden.py. Files of the source "
        "that are not named here were left out whole.",
        "left_out": sorted(set(manifest["files"]) - set(KEEP)),
    }
    reduced["files"] = {}
    for name, patterns in KEEP.items():
        kept, total = cut_file(source / name, target / name, patterns)
        entry = dict(manifest["files"][name])
        entry["tensors"] = {n: entry["tensors"][n] for n in kept if n in entry["tensors"]}
        entry["bytes"] = (target / name).stat().st_size
        entry["kept"] = f"{len(kept)} of {total} tensors"
        entry["patterns"] = patterns
        reduced["files"][name] = entry
    (target / "manifest.json").write_text(json.dumps(reduced, separators=(",", ":")) + "\n")
    total_bytes = sum(f.stat().st_size for f in target.iterdir())
    for name in sorted(f.name for f in target.iterdir()):
        print(f"{(target / name).stat().st_size:10,} {name}")
    print(f"{total_bytes:10,} in all")
    if total_bytes > BYTES_MAX:
        sys.exit(f"over the limit of {BYTES_MAX:,} bytes")


main()
