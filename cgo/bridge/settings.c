// What govs-verbs-test exec says in the environment.
#define _GNU_SOURCE
#include "preload.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The environment as exec has set it: programs may clear theirs, and write over it.
static char **kept;

// keep copies what of the environment is exec's.
static void keep(void)
{
	size_t n = 0, entries = 0;
	while (environ && environ[entries])
		entries++;
	if (!(kept = calloc(entries + 1, sizeof *kept)))
		return;
	for (size_t i = 0; i < entries; i++)
		if (strncmp(environ[i], "GOVS_BRIDGE_", strlen("GOVS_BRIDGE_")) == 0 && (kept[n] = strdup(environ[i])))
			n++;
}

const char *setting(const char *name)
{
	size_t n = strlen(name);
	for (char **entry = kept; entry && *entry; entry++)
		if (strncmp(*entry, name, n) == 0 && (*entry)[n] == '=')
			return *entry + n + 1;
	return NULL;
}

// The constructors of other libraries may come before this one, and call what needs the settings. That is before the
// program has threads.
__attribute__((constructor)) static void read_settings(void) { settings(); }

const struct settings *settings(void)
{
	static struct settings all;
	static int known;
	if (!known) {
		known = 1;
		keep();
		all.library = setting("GOVS_BRIDGE_LIBRARY");
		all.sysfs = setting("GOVS_BRIDGE_SYSFS");
	}
	return &all;
}
