# cmake -DINPUT=file -DOUTPUT=file.c -DNAME=symbol -P embed.cmake
# Writes the bytes of INPUT as `const unsigned char NAME[]` with a NUL behind them, and
# `const size_t NAME_bytes` without it (gcc 12 has no #embed).
file(READ ${INPUT} hex HEX)
string(LENGTH "${hex}" digits)
math(EXPR count "${digits} / 2")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "((0x[0-9a-f][0-9a-f],)(0x[0-9a-f][0-9a-f],)(0x[0-9a-f][0-9a-f],)(0x[0-9a-f][0-9a-f],)(0x[0-9a-f][0-9a-f],)(0x[0-9a-f][0-9a-f],)(0x[0-9a-f][0-9a-f],)(0x[0-9a-f][0-9a-f],))" "\\1\n" bytes "${bytes}")
get_filename_component(source ${INPUT} NAME)
file(WRITE ${OUTPUT} "/* Generated from ${source}; do not edit. */
#include <stddef.h>

extern const unsigned char ${NAME}[];
extern const size_t ${NAME}_bytes;
const unsigned char ${NAME}[] = {
${bytes}0x00};
const size_t ${NAME}_bytes = ${count};
")
