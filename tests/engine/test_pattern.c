/* engine: */
#include "check.h"
#include "base/pattern.h"
#include <stdlib.h>
#include <string.h>

#define MOST 40 /* every world size up to this one is played through */

static void blocks(void)
{
    for (int n = 1; n <= MOST; n++) {
        for (uint64_t count = 0; count < 100; count++) {
            uint64_t at = 0;
            for (int i = 0; i < n; i++) {
                struct pattern_range r = pattern_block(count, n, i);
                CHECK_EQUAL(r.first, at);
                CHECK(r.count == count / (uint64_t)n || r.count == count / (uint64_t)n + 1);
                at += r.count;
            }
            CHECK_EQUAL(at, count);
        }
    }
    struct pattern_range last = pattern_block(UINT64_MAX, 7, 6);
    CHECK(last.first + last.count == UINT64_MAX);
}

static void steps(void)
{
    const int want[] = {0, 0, 1, 2, 2, 3, 3, 3, 3, 4};
    for (int n = 1; n < 10; n++)
        CHECK_EQUAL(pattern_steps(n), want[n]);
    CHECK_EQUAL(pattern_steps(1 << 30), 30);
    CHECK_EQUAL(pattern_steps((1 << 30) + 1), 31);
}

/* Each rank's contribution is one bit; combining ORs them and refuses to count one twice. */
static void ring_reduce_scatter(void)
{
    for (int n = 1; n <= MOST; n++) {
        uint64_t has[MOST][MOST], sent[MOST];
        for (int r = 0; r < n; r++)
            for (int b = 0; b < n; b++)
                has[r][b] = (uint64_t)1 << r;
        for (int s = 0; s < n - 1; s++) {
            for (int r = 0; r < n; r++) {
                sent[r] = has[r][pattern_ring_reduce_sends(r, n, s)];
                CHECK_EQUAL(pattern_ring_reduce_sends(r, n, s),
                            pattern_ring_reduce_receives(pattern_next(r, n), n, s));
            }
            for (int r = 0; r < n; r++) {
                uint64_t *mine = &has[r][pattern_ring_reduce_receives(r, n, s)], theirs = sent[pattern_prev(r, n)];
                CHECK((*mine & theirs) == 0);
                *mine |= theirs;
            }
        }
        for (int r = 0; r < n; r++)
            CHECK(has[r][r] == ((uint64_t)1 << n) - 1);
    }
}

static void ring_all_gather(void)
{
    for (int n = 1; n <= MOST; n++) {
        char has[MOST][MOST] = {0};
        for (int r = 0; r < n; r++)
            has[r][r] = 1;
        for (int s = 0; s < n - 1; s++) {
            char before[MOST][MOST];
            memcpy(before, has, sizeof has);
            for (int r = 0; r < n; r++) {
                int block = pattern_ring_gather_sends(r, n, s);
                CHECK(before[r][block]);
                CHECK_EQUAL(block, pattern_ring_gather_receives(pattern_next(r, n), n, s));
                CHECK(!before[pattern_next(r, n)][block]);
                has[pattern_next(r, n)][block] = 1;
            }
        }
        for (int r = 0; r < n; r++)
            for (int b = 0; b < n; b++)
                CHECK(has[r][b]);
    }
}

static void pairwise(void)
{
    for (int n = 1; n <= MOST; n++) {
        for (int r = 0; r < n; r++) {
            char met[MOST] = {0};
            met[r] = 1;
            for (int s = 0; s < n - 1; s++) {
                int to = pattern_pairwise_to(r, n, s);
                CHECK(!met[to]);
                met[to] = 1;
                CHECK_EQUAL(pattern_pairwise_from(to, n, s), r);
            }
            for (int p = 0; p < n; p++)
                CHECK(met[p]);
        }
    }
}

/* Children are disjoint, consecutive, name their parent, and the spans add up to the whole subtree. */
static void tree(void)
{
    for (int n = 1; n <= MOST; n++) {
        for (int root = 0; root < n; root++) {
            CHECK_EQUAL(pattern_tree_parent(root, root, n), -1);
            CHECK_EQUAL(pattern_tree_span(0, n), n);
            for (int r = 0; r < n; r++) {
                int v = pattern_virtual(r, root, n), at = v + 1;
                CHECK_EQUAL(pattern_actual(v, root, n), r);
                for (int i = 0; i < pattern_tree_children(r, root, n); i++) {
                    int child = pattern_tree_child(r, root, n, i);
                    CHECK_EQUAL(pattern_tree_parent(child, root, n), r);
                    CHECK_EQUAL(pattern_virtual(child, root, n), at);
                    at += pattern_tree_span(at, n);
                }
                CHECK_EQUAL(at - v, pattern_tree_span(v, n));
            }
        }
    }
}

/* Contributions are runs of ranks [low, high): two of them may be combined only when they touch, lower one left. */
struct run { int low, high; };
static struct run join(struct run left, struct run right)
{
    CHECK_EQUAL(left.high, right.low);
    struct run both = {left.low, right.high};
    return both;
}

static void doubling(void)
{
    for (int n = 1; n <= MOST; n++) {
        struct run has[MOST], before[MOST];
        for (int r = 0; r < n; r++)
            has[r] = (struct run){r, r + 1};
        for (int r = 0; r < n; r++) {
            int other = pattern_doubling_fold(r, n);
            CHECK_EQUAL(pattern_doubling_number(r, n) < 0, other >= 0 && r % 2);
            if (other >= 0 && r % 2 == 0)
                has[r] = join(has[r], has[other]);
            if (pattern_doubling_number(r, n) >= 0)
                CHECK_EQUAL(pattern_doubling_rank(pattern_doubling_number(r, n), n), r);
        }
        for (int s = 0; s < pattern_doubling_steps(n); s++) {
            memcpy(before, has, sizeof has);
            for (int r = 0; r < n; r++) {
                if (pattern_doubling_number(r, n) < 0)
                    continue;
                int other = pattern_doubling_partner(r, n, s);
                CHECK_EQUAL(pattern_doubling_partner(other, n, s), r);
                has[r] = other < r ? join(before[other], before[r]) : join(before[r], before[other]);
            }
        }
        for (int r = 0; r < n; r++)
            CHECK(pattern_doubling_number(r, n) < 0 || (has[r].low == 0 && has[r].high == n));
    }
}

static void bruck(void)
{
    for (int n = 1; n <= MOST; n++) {
        int place[MOST][MOST], before[MOST][MOST];
        memset(place, -1, sizeof place);
        for (int r = 0; r < n; r++)
            place[r][0] = r;
        for (int s = 0; s < pattern_steps(n); s++) {
            memcpy(before, place, sizeof place);
            for (int r = 0; r < n; r++) {
                struct pattern_bruck p = pattern_bruck(r, n, s), other = pattern_bruck(p.from, n, s);
                CHECK_EQUAL(other.to, r);
                CHECK_EQUAL(other.blocks, p.blocks);
                for (int i = 0; i < p.blocks; i++)
                    place[r][p.at + i] = before[p.from][i];
            }
        }
        for (int r = 0; r < n; r++)
            for (int i = 0; i < n; i++)
                CHECK_EQUAL(place[r][i], (r + i) % n);
    }
}

int main(void)
{
    TEST(blocks);
    TEST(steps);
    TEST(ring_reduce_scatter);
    TEST(ring_all_gather);
    TEST(pairwise);
    TEST(tree);
    TEST(doubling);
    TEST(bruck);
    return CHECK_RESULT();
}
