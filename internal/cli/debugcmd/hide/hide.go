// Package hide removes secrets from what a debug bundle takes along: text, JSON and TOML. It hides too much rather than
// too little. It knows forms and names, and not where the content comes from.
package hide

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/berthrun/berth/internal/cluster/redact"
	"github.com/berthrun/berth/internal/cri/scrub"
)

// Hidden replaces a secret.
const Hidden = "[hidden]"

// secretWords are parts of the names of secrets.
const secretWords = `passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|client[_-]?key|credential|cookie|bearer`

// Hider hides secrets. It is safe for concurrent use.
type Hider struct {
	scrub *scrub.Scrubber
	rules []rule
	// hints are in lower case; a line that has none of them has no secret that the rules would find.
	hints []string
	// name finds the names of fields, annotations and variables whose values are secrets.
	name *regexp.Regexp
	// environments, commands and others are keys of JSON whose values have a meaning.
	environments, commands, whole, dropped map[string]bool
}

// rule is a form of secret in text, with its replacement.
type rule struct {
	form *regexp.Regexp
	with string
}

// New makes a Hider.
func New() *Hider {
	const value = `(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"',;&|]+)`
	set := func(names ...string) map[string]bool {
		all := map[string]bool{}
		for _, name := range names {
			all[name] = true
		}
		return all
	}
	return &Hider{
		scrub: scrub.New(),
		rules: []rule{
			// NAME_PASSWORD=value, in environments, options of mounts and the like.
			{regexp.MustCompile(`(?i)\b([a-z0-9_.-]*(?:` + secretWords + `|\bpass|\bpwd)[a-z0-9_.-]*\s*=\s*)` + value), "${1}" + Hidden},
			// pw=value, db_pw=value
			{regexp.MustCompile(`(?i)((?:\b|_)pw\s*=\s*)` + value), "${1}" + Hidden},
			// --password value
			{regexp.MustCompile(`(?i)(\s--?[a-z0-9-]*(?:` + secretWords + `)[a-z0-9-]*\s+)` + value), "${1}" + Hidden},
			// -u user:password
			{regexp.MustCompile(`(\s(?:-u|--user|--creds)[ =])[^\s:]+:\S+`), "${1}" + Hidden},
			// mysql -ppassword
			{regexp.MustCompile(`(\b(?:mysql|mariadb)[a-z-]*\b[^|;&\n]*\s-p)[^\s"']+`), "${1}" + Hidden},
			// X-Api-Key: value
			{regexp.MustCompile(`(?i)\b([a-z0-9-]*(?:` + secretWords + `|authorization)[a-z0-9-]*\\?["']?:\s*\\?["']?)[^\s"'\\{\[][^"'\\\n]*`), "${1}" + Hidden},
			// Tokens that services give a form of their own.
			{regexp.MustCompile(`\b(?:gh[pousr]_|github_pat_|glpat-|xox[abpr]-|sk-|AKIA|ASIA|AIza|dckr_pat_|npm_|hvs\.)[A-Za-z0-9_-]{12,}`), Hidden},
		},
		hints: []string{
			"pass", "pw", "secret", "token", "key", "cred", "cookie", "bearer", "basic", "auth", "://", "_proxy", "sig", "x-amz", "x-goog", "accessid", "eyj",
			"-u", "--user", "mysql", "mariadb", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "sk-", "akia", "asia", "aiza", "dckr_pat_", "npm_", "hvs.",
		},
		name:         regexp.MustCompile(`(?i)` + secretWords + `|(?:^|[._/-])(?:auth|authorization|pwd|pw|pass|dsn|sig|signature)$|last-applied-configuration|dockerconfigjson|identitytoken|registrytoken`),
		environments: set("env", "envs", "environment", "environ"),
		commands:     set("command", "cmd", "args", "argv", "entrypoint"),
		whole:        set("created_by", "createdby", "header", "headers"),
		dropped:      set("@wire", "@only"),
	}
}

// Text hides secrets in text, line by line.
func (h *Hider) Text(text string) string {
	var shown strings.Builder
	key := false
	for line := range strings.Lines(text) {
		switch {
		case key:
			key = !strings.Contains(line, "-----END ")
		case strings.Contains(line, "-----BEGIN ") && strings.Contains(line, "PRIVATE KEY-----"):
			key = !strings.Contains(line, "-----END ") // in JSON the whole of it is on one line
			shown.WriteString("(a private key)\n")
		case h.suspicious(line):
			line = redact.Text(line)
			for _, r := range h.rules {
				line = r.form.ReplaceAllString(line, r.with)
			}
			shown.WriteString(h.scrub.Text(line))
		default:
			shown.WriteString(line)
		}
	}
	return shown.String()
}

// suspicious reports whether a line may have a secret. The rules take a hundred times as long, and few lines of a log need
// them.
func (h *Hider) suspicious(line string) bool {
	lower := strings.ToLower(line)
	for _, hint := range h.hints {
		if strings.Contains(lower, hint) {
			return true
		}
	}
	// A bootstrap token: six characters, a dot, sixteen characters.
	for at := 0; ; at++ {
		dot := strings.IndexByte(lower[at:], '.')
		if dot < 0 {
			return false
		}
		if at += dot; wordsAround(lower, at) {
			return true
		}
	}
}

// wordsAround reports whether there are six letters or digits before a place in a text, and sixteen after it.
func wordsAround(text string, at int) bool {
	if at < 6 || len(text)-at <= 16 {
		return false
	}
	for _, c := range []byte(text[at-6:at] + text[at+1:at+17]) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

// JSON hides secrets in a document of JSON, and indents it. What is no JSON is text.
func (h *Hider) JSON(data []byte) []byte {
	value, err := decode(data)
	if err != nil {
		return []byte(h.Text(string(data)))
	}
	shown, err := json.MarshalIndent(h.value(value), "", "  ")
	if err != nil {
		return fmt.Appendf(nil, "(cannot be shown: %v)\n", err)
	}
	return append(shown, '\n')
}

func decode(data []byte) (value any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	if decoder.More() {
		return nil, errors.New("more than one value")
	}
	return value, nil
}

// value hides the secrets of a value whose name says nothing.
func (h *Hider) value(value any) any {
	switch value := value.(type) {
	case map[string]any:
		shown := make(map[string]any, len(value))
		for name, inner := range value {
			if !h.dropped[name] {
				shown[name] = h.named(name, inner)
			}
		}
		return shown
	case []any:
		shown := make([]any, len(value))
		for i, inner := range value {
			shown[i] = h.value(inner)
		}
		return shown
	case string:
		return h.text(value)
	}
	return value
}

// text is a string, which may be a document of JSON itself.
func (h *Hider) text(text string) string {
	if trimmed := strings.TrimSpace(text); strings.HasPrefix(trimmed, "{") || strings.HasPrefix(trimmed, "[") {
		if inner, err := decode([]byte(text)); err == nil {
			if shown, err := json.Marshal(h.value(inner)); err == nil {
				return string(shown)
			}
		}
	}
	return h.Text(text)
}

// named hides the secrets of the value of a field.
func (h *Hider) named(name string, value any) any {
	plain := strings.ToLower(name)
	switch {
	case h.environments[plain]:
		return h.environment(value)
	case h.commands[plain]:
		return h.command(value)
	case h.whole[plain], h.name.MatchString(name):
		return h.all(value)
	}
	return h.value(value)
}

// all hides every string and number. What has no content stays, and so does what is true or false.
func (h *Hider) all(value any) any {
	switch value := value.(type) {
	case map[string]any:
		shown := make(map[string]any, len(value))
		for name, inner := range value {
			shown[name] = h.all(inner)
		}
		return shown
	case []any:
		shown := make([]any, len(value))
		for i, inner := range value {
			shown[i] = h.all(inner)
		}
		return shown
	case string:
		if value == "" {
			return value
		}
		return Hidden
	case json.Number:
		return Hidden
	}
	return value
}

// environment keeps the names of variables: of "NAME=VALUE", of a map, and of objects with a name or a key.
func (h *Hider) environment(value any) any {
	switch value := value.(type) {
	case []any:
		shown := make([]any, len(value))
		for i, inner := range value {
			shown[i] = h.environment(inner)
		}
		return shown
	case map[string]any:
		shown := make(map[string]any, len(value))
		for name, inner := range value {
			if plain := strings.ToLower(name); plain == "key" || plain == "name" {
				shown[name] = inner
				continue
			}
			shown[name] = h.all(inner)
		}
		return shown
	case string:
		name, _, found := strings.Cut(value, "=")
		if !found {
			return Hidden
		}
		return name + "=" + Hidden
	}
	return h.all(value)
}

// command keeps the program and the names of flags: passwords stand anywhere in the rest.
func (h *Hider) command(value any) any {
	list, ok := value.([]any)
	if !ok {
		return h.all(value)
	}
	shown := make([]any, len(list))
	for i, inner := range list {
		word, ok := inner.(string)
		flag, _, hasValue := strings.Cut(word, "=")
		switch {
		case !ok:
			shown[i] = h.all(inner)
		case i == 0 && !strings.ContainsAny(word, " ="):
			shown[i] = h.Text(word)
		case strings.HasPrefix(word, "--") && hasValue && !strings.Contains(flag, " "):
			shown[i] = flag + "=" + Hidden
		case strings.HasPrefix(word, "--") && !strings.Contains(word, " "):
			shown[i] = word
		default:
			shown[i] = Hidden
		}
	}
	return shown
}

// TOML hides secrets in a file of TOML: those of its text, and all values of tables with headers of requests.
func (h *Hider) TOML(text string) string {
	var shown strings.Builder
	header := false
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		name, _, hasValue := strings.Cut(line, "=")
		table := strings.HasPrefix(trimmed, "[") && strings.HasSuffix(trimmed, "]")
		switch lower := strings.ToLower(trimmed); {
		case table && (lower == "[header]" || strings.HasSuffix(lower, ".header]")):
			header = true
		case table && !strings.HasPrefix(trimmed, "[\"") && !strings.HasPrefix(trimmed, "[["): // else it may be a value that goes on
			header = false
		}
		switch {
		case strings.HasPrefix(trimmed, "#"), trimmed == "":
			shown.WriteString(h.Text(line))
		case header && hasValue && !table:
			shown.WriteString(name + "= \"" + Hidden + "\"\n")
		case header && (!table || strings.HasPrefix(trimmed, "[\"")):
			shown.WriteString("# " + Hidden + "\n") // a value that goes on
		case hasValue && (h.name.MatchString(strings.TrimSpace(name)) || strings.Contains(strings.ToLower(name), "header")):
			shown.WriteString(name + "= \"" + Hidden + "\"\n")
		default:
			shown.WriteString(h.Text(line))
		}
	}
	return shown.String()
}
