/* Registered memory, and the pattern that fills it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent.h"

static struct region regions[MAX_REGIONS];

/* Returns eight bytes of the endless pattern for `seed`: output number `word` of a SplitMix64
 * generator that starts from `seed`. Byte `at` of the pattern is byte at%8, lowest first, of output
 * at/8. */
static uint64_t pattern_word(uint64_t seed, uint64_t word)
{
	uint64_t z = seed + (word + 1) * UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static uint8_t pattern_byte(uint64_t seed, uint64_t at, uint64_t *word)
{
	if (at % 8 == 0)
		*word = pattern_word(seed, at / 8);
	return (uint8_t)(*word >> (8 * (at % 8)));
}

struct region *region_number(struct json *in, uint64_t number)
{
	if (number >= MAX_REGIONS || !regions[number].mr) {
		json_error(in, "there is no region %llu", (unsigned long long)number);
		return NULL;
	}
	return &regions[number];
}

static int region_free(struct region *region)
{
	int error = ibv_dereg_mr(region->mr);

	if (error)
		return error;
	munmap(region->mapped, region->mapped_len);
	memset(region, 0, sizeof(*region));
	return 0;
}

void memory_reset(void)
{
	for (int i = 0; i < MAX_REGIONS; i++)
		if (regions[i].mr)
			region_free(&regions[i]);
}

static int parse_access(struct json *in, const char *text)
{
	static const struct {
		const char *name;
		int right;
	} names[] = {
		{ "lw", IBV_ACCESS_LOCAL_WRITE },    { "rw", IBV_ACCESS_REMOTE_WRITE },
		{ "rr", IBV_ACCESS_REMOTE_READ },    { "ra", IBV_ACCESS_REMOTE_ATOMIC },
		{ "mw", IBV_ACCESS_MW_BIND },
	};
	int rights = 0;

	while (*text) {
		size_t len = strcspn(text, ","), i = 0;

		for (; i < sizeof(names) / sizeof(names[0]); i++)
			if (len == 2 && strncmp(text, names[i].name, 2) == 0)
				break;
		if (i == sizeof(names) / sizeof(names[0])) {
			json_error(in, "access: '%.16s' is none of lw rw rr ra mw", text);
			return 0;
		}
		rights |= names[i].right;
		text += len + (text[len] == ',');
	}
	return rights;
}

void command_reg(struct json *in, struct line *out)
{
	uint64_t len = json_number(in, "len", 0), skew = json_number(in, "skew", 0);
	int access = parse_access(in, json_string(in, "access", "lw"));
	struct ibv_pd *pd = pd_number(in, json_number(in, "pd", 0));
	struct region *region = NULL;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	for (int i = 0; i < MAX_REGIONS && !region; i++)
		if (!regions[i].mr)
			region = &regions[i];
	if (!region)
		json_error(in, "all %d regions are in use", MAX_REGIONS);
	if (len == 0 || len > UINT64_C(1) << 32 || skew >= page)
		json_error(in, "len: 1 to 2^32, skew: below a page (%zu)", page);
	if (in->error)
		return;
	region->mapped_len = (len + skew + page - 1) / page * page;
	region->mapped = mmap(NULL, region->mapped_len, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (region->mapped == MAP_FAILED) {
		refuse(out, "mmap", errno);
		return;
	}
	region->memory = (uint8_t *)region->mapped + skew;
	region->len = len;
	region->mr = ibv_reg_mr(pd, region->memory, len, access);
	if (!region->mr) {
		int error = errno;

		munmap(region->mapped, region->mapped_len);
		refuse(out, "ibv_reg_mr", error);
		return;
	}
	agree(out);
	line_number(out, "mr", (uint64_t)(region - regions));
	line_number(out, "addr", (uint64_t)(uintptr_t)region->memory);
	line_number(out, "lkey", region->mr->lkey);
	line_number(out, "rkey", region->mr->rkey);
}

void command_dereg(struct json *in, struct line *out)
{
	struct region *region = region_number(in, json_number(in, "mr", 0));
	int error;

	if (in->error)
		return;
	error = region_free(region);
	if (error)
		refuse(out, "ibv_dereg_mr", error);
	else
		agree(out);
}

/* Returns the bytes that a command names; by default the whole region. */
static uint8_t *range(struct json *in, uint64_t *len)
{
	struct region *region = region_number(in, json_number(in, "mr", 0));
	uint64_t off = json_number(in, "off", 0);

	if (!region)
		return NULL;
	if (off > region->len) {
		json_error(in, "off: the region has %zu bytes", region->len);
		return NULL;
	}
	*len = json_number(in, "len", region->len - off);
	if (*len > region->len - off) {
		json_error(in, "off + len: the region has %zu bytes", region->len);
		return NULL;
	}
	return region->memory + off;
}

void command_fill(struct json *in, struct line *out)
{
	uint64_t len, word = 0, seed = json_number(in, "seed", 0), at = json_number(in, "at", 0);
	uint8_t *bytes = range(in, &len);
	bool zero = json_bool(in, "zero", false);

	if (in->error)
		return;
	if (zero)
		memset(bytes, 0, len);
	word = pattern_word(seed, at / 8);
	for (uint64_t i = 0; i < len && !zero; i++)
		bytes[i] = pattern_byte(seed, at + i, &word);
	agree(out);
}

void command_check(struct json *in, struct line *out)
{
	uint64_t len, word, seed = json_number(in, "seed", 0), at = json_number(in, "at", 0);
	uint8_t *bytes = range(in, &len);
	bool zero = json_bool(in, "zero", false);

	if (in->error)
		return;
	agree(out);
	word = pattern_word(seed, at / 8);
	for (uint64_t i = 0; i < len; i++) {
		uint8_t want = zero ? 0 : pattern_byte(seed, at + i, &word);

		if (bytes[i] != want) {
			line_bool(out, "match", false);
			line_number(out, "off", i);
			line_number(out, "want", want);
			line_number(out, "got", bytes[i]);
			return;
		}
	}
	line_bool(out, "match", true);
}

void command_hash(struct json *in, struct line *out)
{
	uint64_t len, hash = UINT64_C(0xcbf29ce484222325);
	uint8_t *bytes = range(in, &len);

	if (in->error)
		return;
	for (uint64_t i = 0; i < len; i++)
		hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
	agree(out);
	line_number(out, "fnv1a", hash);
}

void command_peek(struct json *in, struct line *out)
{
	uint64_t len = 0;
	uint8_t *bytes = range(in, &len);

	if (len > 4096)
		json_error(in, "len: at most 4096");
	if (in->error)
		return;
	agree(out);
	line_hex(out, "data", bytes, len);
}

void command_poke(struct json *in, struct line *out)
{
	static uint8_t data[16384];
	size_t size = json_hex(in, "data", data, sizeof(data));
	uint64_t len = 0;
	uint8_t *bytes = range(in, &len);

	if (size > len)
		json_error(in, "data: %zu bytes, and %llu are left of the region", size,
			   (unsigned long long)len);
	if (in->error)
		return;
	memcpy(bytes, data, size);
	agree(out);
}

int parse_sges(struct json *in, const char *text, struct ibv_sge *out, int room)
{
	int count = 0;

	while (*text) {
		unsigned long long number[3];
		static const char after[3] = { ':', '+', ',' };
		struct region *region;

		for (int i = 0; i < 3; i++) {
			char *end;

			errno = 0;
			number[i] = strtoull(text, &end, 10);
			if (errno || end == text || *text == '-' || *text == '+' ||
			    (*end != after[i] && !(i == 2 && !*end))) {
				json_error(in, "sge: 'REGION:OFFSET+LENGTH,...' was expected");
				return -1;
			}
			text = end + (*end != '\0');
		}
		region = region_number(in, number[0]);
		if (!region)
			return -1;
		if (count == room || number[2] > UINT32_MAX) {
			json_error(in, "sge: at most %d elements, each below 4 GiB", room);
			return -1;
		}
		out[count].addr = (uint64_t)(uintptr_t)region->memory + number[1];
		out[count].length = (uint32_t)number[2];
		out[count].lkey = region->mr->lkey;
		count++;
	}
	return count;
}
