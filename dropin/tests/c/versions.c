/*
 * Loads the libraries at run time, as some programs do: dlopen by soname, dlvsym by name and
 * version. Reads lines `name version` and prints for each the file that defines it, or `none`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	char name[256], version[256];
	void *verbs = dlopen("libibverbs.so.1", RTLD_NOW);
	void *rdmacm = dlopen("librdmacm.so.1", RTLD_NOW);

	(void)argc;
	(void)argv;
	if (!verbs || !rdmacm) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	while (scanf("%255s %255s", name, version) == 2) {
		void *from = strncmp(version, "RDMACM", 6) ? verbs : rdmacm;
		void *found = dlvsym(from, name, version);
		Dl_info where;

		if (!found)
			printf("%s %s none\n", name, version);
		else if (dladdr(found, &where))
			printf("%s %s %s\n", name, version, where.dli_fname);
	}
	return 0;
}
