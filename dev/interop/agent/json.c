/* One flat JSON object per line, in and out. */
#include "json.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"

/* ---- in ---- */

void json_error(struct json *in, const char *format, ...)
{
	va_list args;

	if (in->error)
		return; /* the first error is kept */
	va_start(args, format);
	vsnprintf(in->error_text, sizeof(in->error_text), format, args);
	va_end(args);
	in->error = in->error_text;
}

static char *skip_blanks(char *at)
{
	while (*at == ' ' || *at == '\t' || *at == '\r')
		at++;
	return at;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* Parses a string in place and returns the text after its closing quote. Each escape becomes one
 * byte. \u is accepted only below 0x80, because the protocol has no text beyond ASCII. */
static char *take_string(struct json *in, char *at, char **out)
{
	char *to;

	if (*at != '"') {
		json_error(in, "a string was expected, got '%.12s'", at);
		return NULL;
	}
	*out = to = ++at;
	while (*at && *at != '"') {
		char c = *at++;

		if ((unsigned char)c < 0x20) {
			json_error(in, "a control character in a string");
			return NULL;
		}
		if (c == '\\') {
			switch (*at++) {
			case '"': c = '"'; break;
			case '\\': c = '\\'; break;
			case '/': c = '/'; break;
			case 'b': c = '\b'; break;
			case 'f': c = '\f'; break;
			case 'n': c = '\n'; break;
			case 'r': c = '\r'; break;
			case 't': c = '\t'; break;
			case 'u': {
				int value = 0;

				for (int i = 0; i < 4; i++) {
					int digit = hex_digit(at[i]);

					if (digit < 0) {
						json_error(in, "\\u without four hexadecimal digits");
						return NULL;
					}
					value = value * 16 + digit;
				}
				if (value == 0 || value >= 0x80) {
					json_error(in, "\\u beyond ASCII, or zero");
					return NULL;
				}
				at += 4;
				c = (char)value;
				break;
			}
			default:
				json_error(in, "an unknown escape in a string");
				return NULL;
			}
		}
		*to++ = c;
	}
	if (*at != '"') {
		json_error(in, "a string without an end");
		return NULL;
	}
	*to = '\0';
	return at + 1;
}

static char *take_word(struct json *in, char *at, struct json_member *member)
{
	static const struct {
		const char *word;
		enum json_kind kind;
		uint64_t number;
	} words[] = { { "true", JSON_BOOL, 1 }, { "false", JSON_BOOL, 0 }, { "null", JSON_NULL, 0 } };

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		size_t len = strlen(words[i].word);

		if (strncmp(at, words[i].word, len) == 0) {
			member->kind = words[i].kind;
			member->number = words[i].number;
			return at + len;
		}
	}
	json_error(in, "a string, a number, true, false or null was expected, got '%.12s'", at);
	return NULL;
}

static char *take_value(struct json *in, char *at, struct json_member *member)
{
	if (*at == '"') {
		member->kind = JSON_STRING;
		return take_string(in, at, &member->string);
	}
	if (isdigit((unsigned char)*at)) {
		char *end;

		errno = 0;
		member->kind = JSON_NUMBER;
		member->number = strtoull(at, &end, 10);
		if (errno || *end == '.' || *end == 'e' || *end == 'E') {
			json_error(in, "a whole number below 2^64 was expected, got '%.24s'", at);
			return NULL;
		}
		return end;
	}
	return take_word(in, at, member);
}

static const struct json_member *find(const struct json *in, const char *key)
{
	for (int i = 0; i < in->count; i++)
		if (strcmp(in->members[i].key, key) == 0)
			return &in->members[i];
	return NULL;
}

bool json_parse(struct json *out, char *line)
{
	char *at = skip_blanks(line);

	memset(out, 0, sizeof(*out));
	if (*at != '{') {
		json_error(out, "one JSON object a line was expected, got '%.12s'", at);
		return false;
	}
	at = skip_blanks(at + 1);
	while (*at != '}') {
		struct json_member member = { 0 };

		if (out->count && *at++ != ',') {
			json_error(out, "',' or '}' was expected before '%.12s'", at - 1);
			return false;
		}
		at = take_string(out, skip_blanks(at), &member.key);
		if (!at)
			return false;
		at = skip_blanks(at);
		if (*at != ':') {
			json_error(out, "':' was expected after the key '%.24s'", member.key);
			return false;
		}
		at = take_value(out, skip_blanks(at + 1), &member);
		if (!at)
			return false;
		if (find(out, member.key)) {
			json_error(out, "the key '%.24s' occurs twice", member.key);
			return false;
		}
		if (out->count == JSON_MAX_MEMBERS) {
			json_error(out, "more than %d members", JSON_MAX_MEMBERS);
			return false;
		}
		out->members[out->count++] = member;
		at = skip_blanks(at);
	}
	at = skip_blanks(at + 1);
	if (*at) {
		json_error(out, "more after the object: '%.12s'", at);
		return false;
	}
	return true;
}

bool json_has(const struct json *in, const char *key)
{
	return find(in, key) != NULL;
}

uint64_t json_number(struct json *in, const char *key, uint64_t absent)
{
	const struct json_member *member = find(in, key);
	char *end;

	if (!member)
		return absent;
	if (member->kind == JSON_NUMBER)
		return member->number;
	if (member->kind == JSON_STRING && isdigit((unsigned char)member->string[0])) {
		uint64_t value;

		errno = 0;
		value = strtoull(member->string, &end, 0);
		if (!errno && !*end)
			return value;
	}
	json_error(in, "%s: a number was expected", key);
	return absent;
}

const char *json_string(struct json *in, const char *key, const char *absent)
{
	const struct json_member *member = find(in, key);

	if (!member)
		return absent;
	if (member->kind == JSON_STRING)
		return member->string;
	json_error(in, "%s: a string was expected", key);
	return absent;
}

bool json_bool(struct json *in, const char *key, bool absent)
{
	const struct json_member *member = find(in, key);

	if (!member)
		return absent;
	if (member->kind == JSON_BOOL)
		return member->number != 0;
	json_error(in, "%s: true or false was expected", key);
	return absent;
}

size_t json_hex(struct json *in, const char *key, uint8_t *out, size_t room)
{
	const char *text = json_string(in, key, "");
	size_t len = strlen(text);

	if (len % 2 || len / 2 > room) {
		json_error(in, "%s: %zu hexadecimal digits; an even number up to %zu was expected", key,
			   len, 2 * room);
		return 0;
	}
	for (size_t i = 0; i < len / 2; i++) {
		int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);

		if (high < 0 || low < 0) {
			json_error(in, "%s: '%c%c' is not hexadecimal", key, text[2 * i], text[2 * i + 1]);
			return 0;
		}
		out[i] = (uint8_t)(high << 4 | low);
	}
	return len / 2;
}

bool json_only(struct json *in, const char *allowed)
{
	for (int i = 0; i < in->count; i++) {
		const char *key = in->members[i].key, *at = allowed;
		size_t len = strlen(key);
		bool known = false;

		while (!known && len && (at = strstr(at, key)) != NULL) {
			known = (at == allowed || at[-1] == ' ') && (at[len] == ' ' || !at[len]);
			at += len;
		}
		if (!known) {
			json_error(in, "this command has no '%.24s'; it takes: %s", key, allowed);
			return false;
		}
	}
	return true;
}

/* ---- out ---- */

static void put(struct line *line, const char *text, size_t len)
{
	if (line->len + len + 1 > line->room) {
		line->room = 2 * (line->len + len + 1);
		line->text = must(realloc(line->text, line->room));
	}
	memcpy(line->text + line->len, text, len);
	line->len += len;
	line->text[line->len] = '\0';
}

static void put_text(struct line *line, const char *text)
{
	put(line, text, strlen(text));
}

void line_begin(struct line *line)
{
	memset(line, 0, sizeof(*line));
	put_text(line, "{");
}

static void put_key(struct line *line, const char *key)
{
	put_text(line, line->len > 1 ? ",\"" : "\"");
	put_text(line, key);
	put_text(line, "\":");
}

void line_number(struct line *line, const char *key, uint64_t value)
{
	char text[24];

	put_key(line, key);
	snprintf(text, sizeof(text), "%" PRIu64, value);
	put_text(line, text);
}

void line_signed(struct line *line, const char *key, int64_t value)
{
	char text[24];

	put_key(line, key);
	snprintf(text, sizeof(text), "%" PRId64, value);
	put_text(line, text);
}

void line_bool(struct line *line, const char *key, bool value)
{
	put_key(line, key);
	put_text(line, value ? "true" : "false");
}

void line_string(struct line *line, const char *key, const char *value)
{
	put_key(line, key);
	put_text(line, "\"");
	for (; *value; value++) {
		unsigned char c = (unsigned char)*value;
		char escaped[8];

		if (c == '"' || c == '\\')
			snprintf(escaped, sizeof(escaped), "\\%c", c);
		else if (c < 0x20 || c >= 0x7f)
			snprintf(escaped, sizeof(escaped), "\\u%04x", c);
		else
			snprintf(escaped, sizeof(escaped), "%c", c);
		put_text(line, escaped);
	}
	put_text(line, "\"");
}

void line_hex(struct line *line, const char *key, const void *bytes, size_t len)
{
	const uint8_t *at = bytes;

	put_key(line, key);
	put_text(line, "\"");
	for (size_t i = 0; i < len; i++) {
		char text[3];

		snprintf(text, sizeof(text), "%02x", at[i]);
		put(line, text, 2);
	}
	put_text(line, "\"");
}

void line_end(struct line *line)
{
	put_text(line, "}\n");
	control_write(line->text, line->len);
	free(line->text);
	memset(line, 0, sizeof(*line));
}
