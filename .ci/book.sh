# Part of ci.sh that builds the HTML site of all pages. ci.sh sources this file.

# The version that CI builds with.
MDBOOK=0.4.52

# Builds the site. Fails if a link in it leads to no file.
part_book() {
    local book page pages
    # Unoptimized, because the build of the site takes a second either way.
    need_program mdbook "$MDBOOK" --debug --no-default-features || return 0
    book=$(realpath -m "${CARGO_TARGET_DIR:-target}")/book
    rm -rf "$book"
    mkdir -p "$book/src"
    cp docs/book.toml "$book/"
    book_summary >"$book/src/SUMMARY.md"
    mapfile -t pages < <(sed -n 's/.*](\(.*\))$/\1/p' "$book/src/SUMMARY.md")
    for page in "${pages[@]}"; do
        page=${page/%index.md/README.md}
        mkdir -p "$(dirname "$book/src/$page")"
        # mdBook turns README.md into the index.html of its folder, but does not change the links to
        # it.
        sed -E 's/(\]\([^)#]*)README\.md/\1index.md/g' "$page" >"$book/src/${page/%README.md/index.md}"
        book_attachments "$page" "$book/src"
    done
    mdbook build "$book"
    book_links "$book/book"
    echo "${#pages[@]} pages: $book/book/index.html"
}

# Prints mdBook's table of contents: the pages in the order of docs/README.md, under its headings. A
# page that is listed twice appears only at its first place.
book_summary() {
    echo '# Summary'
    echo
    echo "[uwarp](index.md)"
    echo "[Documentation](docs/index.md)"
    echo
    awk '/^## / { sub(/^## /, ""); print "#\t" $0; next }
        { line = $0
          while (match(line, /\]\([^)#]*\.md/)) {
              path = substr(line, RSTART + 2, RLENGTH - 2)
              print (path ~ /^\.\.\// ? substr(path, 4) : "docs/" path)
              line = substr(line, RSTART + RLENGTH)
          } }' docs/README.md | {
        local seen=" README.md docs/README.md " path name
        while IFS=$'\t' read -r path name; do
            if [ "$path" = '#' ]; then
                printf '\n# %s\n\n' "$name"
            elif [[ $seen != *" $path "* ]]; then
                seen+="$path "
                printf -- '- [%s](%s)\n' "$(sed -n '/^# /{s/^# //p;q}' "$path")" "${path/%README.md/index.md}"
            fi
        done
    }
}

# Copies the files that a page links to, except other pages: pictures, sources, tables.
book_attachments() { # PAGE DESTINATION
    local target file
    while read -r target; do
        file=$(realpath -m --relative-to=. "$(dirname "$1")/$target")
        if [ -f "$file" ]; then
            mkdir -p "$2/$(dirname "$file")"
            cp "$file" "$2/$file"
        fi
    done < <(grep -oE '\]\([^)#]+' "$1" | sed 's/^](//' | grep -vE '://|\.md$')
}

# Fails on a link of the site that leads to no file.
book_links() { # SITE
    local page target failed=0
    while read -r page; do
        while read -r target; do
            if [ ! -e "$(dirname "$page")/$target" ]; then
                echo "${page#"$1"/}: $target leads nowhere in the site"
                failed=1
            fi
        done < <(grep -oE '(href|src)="[^"#]+' "$page" | sed -E 's/^(href|src)="//' | grep -v '://' | sort -u)
    done < <(find "$1" -name '*.html')
    return "$failed"
}
