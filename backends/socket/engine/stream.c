#include "stream.h"

#include <stdint.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>

#define LINE 64

/* Whole lines only: a line written in parts goes to memory once for each part. */
__attribute__((target("avx"))) static void copy_lines(char *to, const char *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += LINE) {
        __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(from + at));
        __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(from + at + 32));
        _mm256_stream_si256((__m256i *)(void *)(to + at), low);
        _mm256_stream_si256((__m256i *)(void *)(to + at + 32), high);
    }
    _mm_sfence();
}

void stream_copy(void *to, const void *from, size_t bytes)
{
    size_t head = -(uintptr_t)to % LINE;
    if (bytes < STREAM_MIN || !__builtin_cpu_supports("avx")) {
        memcpy(to, from, bytes);
        return;
    }
    size_t lines = (bytes - head) / LINE * LINE, tail = bytes - head - lines;
    memcpy(to, from, head);
    memcpy((char *)to + head + lines, (const char *)from + head + lines, tail);
    copy_lines((char *)to + head, (const char *)from + head, lines);
}
#else
void stream_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif
