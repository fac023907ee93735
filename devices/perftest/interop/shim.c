/*
 * Preloaded into perftest's programs, which are otherwise as Debian has them: their first PSN, which they draw by lrand48,
 * is the one in FIRST_PSN, and what they sleep to let the other side get ready, which takes most of their time, is short.
 */
#include <stdlib.h>
#include <unistd.h>

long lrand48(void) {
    const char *psn = getenv("FIRST_PSN");
    static long next = 0x5a5a5a;
    return psn ? strtol(psn, NULL, 0) : (next = next * 1103515245 + 12345) & 0xffffff;
}

unsigned sleep(unsigned seconds) {
    usleep(seconds * 20000);
    return 0;
}
