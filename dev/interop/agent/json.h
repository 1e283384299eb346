/* One flat JSON object per line, in and out. */
#ifndef AGENT_JSON_H
#define AGENT_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JSON_MAX_MEMBERS = 32 };

enum json_kind { JSON_STRING, JSON_NUMBER, JSON_BOOL, JSON_NULL };

struct json_member {
	char *key;
	enum json_kind kind;
	char *string;	  /* JSON_STRING */
	uint64_t number;  /* JSON_NUMBER; bool: 0 or 1 */
};

struct json {
	struct json_member members[JSON_MAX_MEMBERS];
	int count;
	const char *error; /* description of the first error, or NULL */
	char error_text[160];
};

/* Parses `line` in place; the members point into it. Nested objects and arrays are refused. Numbers
 * are whole and not negative. A key may occur once. */
bool json_parse(struct json *out, char *line);

bool json_has(const struct json *in, const char *key);
/* Returns the value of a member, or `absent` if there is no such member. A member of another kind
 * sets `error`. A number may also be a string in C notation ("0x1f"), for values above 2^53. */
uint64_t json_number(struct json *in, const char *key, uint64_t absent);
const char *json_string(struct json *in, const char *key, const char *absent);
bool json_bool(struct json *in, const char *key, bool absent);
/* Decodes a hexadecimal member. Returns the number of bytes. More than `room` bytes set `error`. */
size_t json_hex(struct json *in, const char *key, uint8_t *out, size_t room);
/* Returns true if every key is in `allowed`, a list of words separated by blanks. Otherwise `error`
 * names the unknown key. */
bool json_only(struct json *in, const char *allowed);
void json_error(struct json *in, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A line under construction. */
struct line {
	char *text;
	size_t len, room;
};

void line_begin(struct line *line);
void line_number(struct line *line, const char *key, uint64_t value);
void line_signed(struct line *line, const char *key, int64_t value);
void line_string(struct line *line, const char *key, const char *value);
void line_bool(struct line *line, const char *key, bool value);
void line_hex(struct line *line, const char *key, const void *bytes, size_t len);
/* Sends the line over the control channel and frees it. */
void line_end(struct line *line);

#endif
