/* Checks for the engine's unit tests: each test prints "ok N - name" or "not ok N - name" with what failed. */
#ifndef CHECK_H
#define CHECK_H
#include <stdio.h>

static int check_failed, check_failures, check_tests;

/* Records a failure and goes on, so that one run shows them all (the first 20 of a test are printed). */
#define CHECK(condition) CHECK_MESSAGE(condition, "%s", "")
#define CHECK_MESSAGE(condition, ...)                                              \
    do {                                                                           \
        if (!(condition) && check_failed++ < 20) {                                 \
            printf("# %s:%d: %s failed ", __FILE__, __LINE__, #condition);         \
            printf(__VA_ARGS__);                                                   \
            printf("\n");                                                          \
        }                                                                          \
    } while (0)
#define CHECK_EQUAL(got, want)                                                     \
    do {                                                                           \
        long long check_got = (long long)(got), check_want = (long long)(want);    \
        CHECK_MESSAGE(check_got == check_want, "%s is %lld, not %lld", #got, check_got, check_want); \
    } while (0)

#define TEST(function)                                                             \
    do {                                                                           \
        check_failed = 0;                                                          \
        function();                                                                \
        check_tests++;                                                             \
        check_failures += check_failed != 0;                                       \
        printf("%s %d - %s\n", check_failed ? "not ok" : "ok", check_tests, #function); \
        fflush(stdout);                                                            \
    } while (0)

/* What main returns. A program without a test has failed. */
#define CHECK_RESULT() (printf("1..%d\n", check_tests), check_failures != 0 || check_tests == 0)
#endif
