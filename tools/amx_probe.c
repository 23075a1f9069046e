/* Loads a tile configuration as llama.cpp does. GCC 12 does not know that the instruction reads all of it, and leaves
   out the stores: the processor gets what was on the stack, and faults (ggml-org/llama.cpp issue 20824). Exits with 0
   where that works, and where the processor has no AMX. */
#ifndef __AMX_TILE__
int main(void) { return 0; }
#else
#include <immintrin.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

struct tile_config {
    uint8_t palette_id, start_row, reserved[14];
    uint16_t colsb[16];
    uint8_t rows[16];
};

static void __attribute__((noinline)) fill_stack(void) {
    volatile char bytes[4096];
    for (int i = 0; i < 4096; ++i) bytes[i] = (char)0xA5;
}

static void __attribute__((noinline)) load(int tiles) {
    struct tile_config config = {0};
    config.palette_id = 1;
    for (int i = 0; i < tiles; ++i) {
        config.colsb[i] = 64;
        config.rows[i] = 16;
    }
    _tile_loadconfig(&config);
    _tile_release();
}

int main(void) {
    syscall(SYS_arch_prctl, 0x1023, 18); /* ARCH_REQ_XCOMP_PERM, XTILEDATA */
    fill_stack();
    load(8);
    return 0;
}
#endif
