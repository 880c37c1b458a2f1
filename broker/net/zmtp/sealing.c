/* The boxes of CURVE's traffic, many in one call: an optional helper of broker/net/zmtp/sealing.py.
 *
 * Plain C, no Python and no libsodium to be linked: the functions of the boxes are passed in. Nothing is allocated, and
 * nothing is kept. The caller gives buffers that are large enough, and runs each function without the GIL.
 */
#include <stdint.h>
#include <string.h>

typedef int (*box_function)(unsigned char *to, const unsigned char *from, unsigned long long size,
                            const unsigned char *nonce, const unsigned char *key);

/* One direction of one connection. The order of the fields is known to sealing.py. */
struct direction {
    unsigned char key[32];
    unsigned char prefix[16]; /* of the nonces */
    uint64_t counter;         /* the last one that was used */
};

enum { MORE = 1, LONG = 2, SHORT = 256, BOX = 16, MAC = 16, OVERHEAD = BOX + MAC + 1, BOXED_COMMAND = 2 };

static const unsigned char MARK[] = {7, 'M', 'E', 'S', 'S', 'A', 'G', 'E'};

static uint64_t get64(const unsigned char *at) {
    uint64_t value = 0;
    for (int i = 0; i < 8; i++) value = value << 8 | at[i];
    return value;
}

static void put64(unsigned char *at, uint64_t value) {
    for (int i = 7; i >= 0; i--, value >>= 8) at[i] = value & 255;
}

/* Opens the frames in in[*position] up to in[size], `most` at most, of `longest` bytes at most, into `room` bytes at out.
 * Each gets three numbers in the table: its flags, and where it begins and ends in out. Stops before a frame that is not
 * complete, has no room, or is wrong in any way: the caller looks at that one itself. Returns the number of frames, and
 * sets *position behind the last. */
int64_t elkobroker_open(box_function open, struct direction *from, const unsigned char *in, uint64_t *position,
                        uint64_t size, uint64_t longest, unsigned char *out, uint64_t room, uint32_t *table,
                        int64_t most) {
    unsigned char nonce[24];
    uint64_t at = *position, filled = 0;
    int64_t count = 0;
    memcpy(nonce, from->prefix, 16);
    for (; count < most && size - at >= 2; count++) {
        uint64_t head = 2, length = in[at + 1];
        if (in[at] == LONG) {
            if (size - at < 9) break;
            head = 9;
            length = get64(in + at + 1);
        } else if (in[at] != 0) break;
        if (length < OVERHEAD || length > size - at - head) break;
        const unsigned char *body = in + at + head;
        uint64_t held = length - OVERHEAD, counter = get64(body + sizeof MARK);
        if (held > longest || held + 1 > room - filled) break;
        if (memcmp(body, MARK, sizeof MARK) || counter <= from->counter) break;
        memcpy(nonce + 16, body + sizeof MARK, 8);
        if (open(out + filled, body + BOX, length - BOX, nonce, from->key)) break;
        if (out[filled] > BOXED_COMMAND) break;
        from->counter = counter;
        *table++ = out[filled];
        *table++ = (uint32_t)(filled + 1);
        *table++ = (uint32_t)(filled + 1 + held);
        filled += held + 1;
        at += head + length;
    }
    *position = at;
    return count;
}

/* Seals one message, given as the frames of NULL, for `count` connections. Each has room for `stride` bytes at out, at
 * least OVERHEAD + 7 more for each frame than the message has. Where numbers are given, the 8 bytes from `place` on in the
 * first frame are replaced by the connection's own, in network order. Returns the bytes that each connection got, or -1
 * before anything is done where a counter is used up. */
int64_t elkobroker_seal(box_function seal, struct direction **to, int64_t count, const unsigned char *message,
                        uint64_t size, uint64_t frames, const uint64_t *numbers, uint64_t place, unsigned char *out,
                        uint64_t stride) {
    unsigned char nonce[24];
    int64_t written = 0;
    for (int64_t peer = 0; peer < count; peer++)
        if (to[peer]->counter > UINT64_MAX - frames * (uint64_t)count) return -1;
    for (int64_t peer = 0; peer < count; peer++, out += stride) {
        unsigned char *next = out;
        memcpy(nonce, to[peer]->prefix, 16);
        for (uint64_t at = 0; at < size;) {
            unsigned char flags = message[at];
            uint64_t length = flags & LONG ? get64(message + at + 1) : message[at + 1], outer = length + OVERHEAD;
            const unsigned char *body = message + at + (flags & LONG ? 9 : 2);
            if (outer < SHORT) {
                *next++ = 0;
                *next++ = (unsigned char)outer;
            } else {
                *next++ = LONG;
                put64(next, outer);
                next += 8;
            }
            memcpy(next, MARK, sizeof MARK);
            put64(next + sizeof MARK, ++to[peer]->counter);
            memcpy(nonce + 16, next + sizeof MARK, 8);
            next += BOX;
            /* The content is encrypted where it will stand, behind the MAC. */
            next[MAC] = flags & ~LONG & 4 ? BOXED_COMMAND : flags & MORE;
            memcpy(next + MAC + 1, body, length);
            if (numbers && at == 0) put64(next + MAC + 1 + place, numbers[peer]);
            seal(next, next + MAC, length + 1, nonce, to[peer]->key);
            next += length + 1 + MAC;
            at = (uint64_t)(body - message) + length;
        }
        written = next - out;
    }
    return written;
}
