#!/usr/bin/env bash
# Builds the CUDA kernels for the GPU at hand with nvcc alone and checks them: kernels/cuda/check.sh [bench]
# Needs nvcc, a GPU and this repository; no other library, no network.
set -euo pipefail
cd "$(dirname "$0")/../.."
architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
suffix=
[ "$architecture" = 90 ] && suffix=a
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
nvcc -std=c++17 -O2 -lineinfo -I. -Xcompiler -ffp-contract=off \
    -gencode "arch=compute_$architecture$suffix,code=sm_$architecture$suffix" \
    kernels/cuda/cuda_quantize.cu kernels/cuda/cuda_stream.cu kernels/cuda/check_quantizers.cu \
    -o "$out/check_quantizers"
"$out/check_quantizers" tests/data/golden/vectors/common "$@"
