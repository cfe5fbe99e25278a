/* SHA-256 (FIPS 180-4) of two pieces of bytes as if they were one.
 *
 * A digest of another function would only make the chain's reader leave a record to Python. */

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_SHA_INSTRUCTIONS 1
#include <cpuid.h>
#include <immintrin.h>
#endif

typedef struct {
    uint32_t state[8];
    uint64_t size;
    unsigned char rest[64];   /* of which size % 64 bytes are held */
} Sha256;

static const uint32_t SHA256_ROUNDS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static inline uint32_t rotated(uint32_t word, int by) { return word >> by | word << (32 - by); }

static void sha256_blocks_plain(uint32_t *state, const unsigned char *data, size_t blocks)
{
    for (; blocks; blocks--, data += 64) {
        uint32_t w[64], s[8];
        for (int i = 0; i < 16; i++) {
            w[i] = (uint32_t)data[4 * i] << 24 | (uint32_t)data[4 * i + 1] << 16 |
                   (uint32_t)data[4 * i + 2] << 8 | data[4 * i + 3];
        }
        for (int i = 16; i < 64; i++) {
            uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + w[i - 7] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3) +
                   (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
        }
        memcpy(s, state, sizeof s);
        for (int i = 0; i < 64; i++) {
            uint32_t one = s[7] + (rotated(s[4], 6) ^ rotated(s[4], 11) ^ rotated(s[4], 25)) +
                           ((s[4] & s[5]) ^ (~s[4] & s[6])) + SHA256_ROUNDS[i] + w[i];
            uint32_t two = (rotated(s[0], 2) ^ rotated(s[0], 13) ^ rotated(s[0], 22)) +
                           ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
            memmove(s + 1, s, 7 * sizeof *s);
            s[4] += one;
            s[0] = one + two;
        }
        for (int i = 0; i < 8; i++) {
            state[i] += s[i];
        }
    }
}

#ifdef HAS_SHA_INSTRUCTIONS
__attribute__((target("sha,sse4.1"))) static void
sha256_blocks_fast(uint32_t *state, const unsigned char *data, size_t blocks)
{
    const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    __m128i *kept = (__m128i *)state;
    /* The instructions want the words as ABEF and CDGH. */
    __m128i low = _mm_shuffle_epi32(_mm_loadu_si128(kept), 0xB1);
    __m128i high = _mm_shuffle_epi32(_mm_loadu_si128(kept + 1), 0x1B);
    __m128i abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xF0);
    for (; blocks; blocks--, data += 64) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[16];
        for (int i = 0; i < 16; i++) {
            if (i < 4) {
                const __m128i found = _mm_loadu_si128((const __m128i *)(data + 16 * i));
                w[i] = _mm_shuffle_epi8(found, order);
            } else {
                const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[i - 4], w[i - 3]),
                                                  _mm_alignr_epi8(w[i - 1], w[i - 2], 4));
                w[i] = _mm_sha256msg2_epu32(sum, w[i - 1]);
            }
            const __m128i *round = (const __m128i *)(SHA256_ROUNDS + 4 * i);
            const __m128i next = _mm_add_epi32(w[i], _mm_loadu_si128(round));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, next);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(next, 0x0E));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    low = _mm_shuffle_epi32(abef, 0x1B);
    high = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128(kept, _mm_blend_epi16(low, high, 0xF0));
    _mm_storeu_si128(kept + 1, _mm_alignr_epi8(high, low, 8));
}

static int has_sha_instructions(void)
{
    static int known = -1;
    if (known < 0) {
        unsigned a, b, c, d;
        known = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_1) && (c & bit_SSSE3) &&
                __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1);
    }
    return known;
}
#endif

static void sha256_blocks(uint32_t *state, const unsigned char *data, size_t blocks)
{
#ifdef HAS_SHA_INSTRUCTIONS
    if (has_sha_instructions()) {
        sha256_blocks_fast(state, data, blocks);
        return;
    }
#endif
    sha256_blocks_plain(state, data, blocks);
}

static void sha256_add(Sha256 *sha, const unsigned char *data, size_t size)
{
    size_t held = sha->size % 64;
    if (size == 0) {
        return;
    }
    sha->size += size;
    if (held) {
        size_t more = size < 64 - held ? size : 64 - held;
        memcpy(sha->rest + held, data, more);
        data += more;
        size -= more;
        if (held + more < 64) {
            return;
        }
        sha256_blocks(sha->state, sha->rest, 1);
    }
    sha256_blocks(sha->state, data, size / 64);
    memcpy(sha->rest, data + (size - size % 64), size % 64);
}

/* Put the digest of 32 bytes of `first` and then `second`. */
static void sha256_of(const unsigned char *first, size_t first_size, const unsigned char *second,
                      size_t second_size, unsigned char *digest)
{
    Sha256 sha = {{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                   0x1f83d9ab, 0x5be0cd19}, 0, {0}};
    static const unsigned char padding[64] = {0x80};
    sha256_add(&sha, first, first_size);
    sha256_add(&sha, second, second_size);
    uint64_t bits = sha.size * 8;
    unsigned char length[8];
    for (int i = 0; i < 8; i++) {
        length[i] = (unsigned char)(bits >> (56 - 8 * i));
    }
    sha256_add(&sha, padding, (119 - sha.size % 64) % 64 + 1);
    sha256_add(&sha, length, 8);
    for (int i = 0; i < 32; i++) {
        digest[i] = (unsigned char)(sha.state[i / 4] >> (24 - 8 * (i % 4)));
    }
}
