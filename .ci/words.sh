# Part of ci.sh that checks the language of comments and docs. ci.sh sources this file.

# Directories and files to check. To check only some of them: WORDS_CRATES=llp/src ./ci.sh words
WORDS_CRATES=${WORDS_CRATES:-mpa ddp rdmap engine llp verbs conformance cli dropin fuzz tools dev
    examples docs
    README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md SECURITY.md}

# Maximum width of a comment line, in columns.
WORDS_WIDTH=100

# Phrases that readers stumble over, and their replacements.
WORDS_BANNED='of no octets=empty
in vain=without effect
is heeded=takes effect
looks after=handles'

# Fails on comment lines that are too wide, on module comments that begin with "What" or "Who", and
# on banned phrases.
part_words() {
    local files=() crates=()
    read -ra crates <<<"${WORDS_CRATES//$'\n'/ }"
    mapfile -t files < <(find "${crates[@]}" -name target -prune -o \
        -type f \( -name '*.rs' -o -name '*.md' \) -print | sort)
    if [ ${#files[@]} = 0 ]; then
        echo "no .rs or .md file in: $WORDS_CRATES" >&2
        return 1
    fi
    LC_ALL=C WORDS_BANNED=$WORDS_BANNED WORDS_WIDTH=$WORDS_WIDTH awk "$WORDS_CHECK" "${files[@]}" ||
        return 1
    echo "${#files[@]} files"
}

# Awk program that prints FILE:LINE: RULE for each line that breaks a rule. It also finds a banned
# phrase that continues on the next line of a comment.
WORDS_CHECK='
function report(rule) {
    printf "%s:%d: %s\n", FILENAME, FNR, rule
    failed = 1
}

# Returns the comment of a line of Rust, with its slashes, or an empty string. Removes string
# literals first, because they may contain slashes. This also removes quotations from the comment.
function comment_of(line) {
    gsub(/\\\\|\\"|\047"\047/, "", line)
    gsub(/"[^"]*"/, "", line)
    return match(line, /(^|[ \t])\/\/.*/) ? substr(line, RSTART) : ""
}

# Returns the number of columns of a line: its bytes without the continuation bytes of UTF-8.
function columns(line) {
    gsub(/[\200-\277]/, "", line)
    return length(line)
}

BEGIN {
    width = ENVIRON["WORDS_WIDTH"] + 0
    phrases = split(ENVIRON["WORDS_BANNED"], rows, "\n")
    for (i = 1; i <= phrases; i++) {
        split(rows[i], row, "=")
        phrase[i] = row[1]
        instead[i] = row[2]
    }
}

FNR == 1 {
    last = ""
    is_rust = FILENAME ~ /\.rs$/
    had_module_comment = 0
}

{
    text = is_rust ? comment_of($0) : $0
    if (text == "") {
        last = ""
        next
    }
    if (is_rust && columns($0) > width) {
        report("a comment line of " columns($0) " columns; the limit is " width)
    }
    if (is_rust && !had_module_comment && text ~ /^[ \t]*\/\/!/) {
        had_module_comment = 1
        if (text ~ /^[ \t]*\/\/![ \t]*(What|Who)[^A-Za-z]/) {
            report("a module comment begins with \"What\" or \"Who\"; use a noun or a verb")
        }
    }
    gsub(/^[ \t]*(\/\/+!?|>)?[ \t]*/, "", text)
    text = tolower(text)
    gsub(/[ \t]+/, " ", text)
    # A match that lies wholly in the previous line was already reported for that line.
    both = last " " text " "
    for (i = 1; i <= phrases; i++) {
        at = match(both, "(^|[^a-z])" phrase[i] "[^a-z]")
        if (at && at + RLENGTH - 1 > length(last) + 1) {
            report("\"" phrase[i] "\"; write \"" instead[i] "\"")
        }
    }
    last = text
}

END { exit failed }
'
