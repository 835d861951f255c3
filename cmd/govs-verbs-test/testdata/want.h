// What several programs check with. main returns wrong.
#include <stdio.h>

static int wrong;

// want says what is not as expected.
static void want(const char *what, long got, long expected)
{
	if (got == expected)
		return;
	printf("%s: %ld, want %ld\n", what, got, expected);
	wrong = 1;
}
