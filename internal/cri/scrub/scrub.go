// Package scrub removes credentials from text that leaves the daemon: errors of
// registries quote URLs and headers, and the kubelet publishes errors as events,
// which other users of the cluster can read.
package scrub

import (
	"regexp"
	"strings"
)

// Hidden replaces a credential.
const Hidden = "[hidden]"

// secretNames are keys whose values are credentials, in queries and in JSON:
// tokens, passwords, and what pre-signed URLs of object stores carry.
const secretNames = `(?:[a-z0-9_-]*token|[a-z_-]*password|passwd|[a-z_-]*secret|signature|sig|auth|` +
	`x-amz-[a-z-]+|x-goog-[a-z-]+|awsaccesskeyid|googleaccessid)`

// Scrubber hides credentials. It is safe for concurrent use.
type Scrubber struct {
	// plain finds what looks like a header and is none.
	plain *regexp.Regexp
	rules []rule
}

type rule struct {
	find *regexp.Regexp
	put  string
}

// plainWords follow "may require authorization: " in errors of registries. They are not the value of a header.
const plainWords = `authorization|server`

// New makes a Scrubber.
func New() *Scrubber {
	return &Scrubber{plain: regexp.MustCompile(`\bmay require authorization: (?:` + plainWords + `)\b`), rules: []rule{
		// https://user:password@host
		{regexp.MustCompile(`(?i)([a-z][a-z0-9+.-]*://)[^/\s"'@]+@`), "${1}" + Hidden + "@"},
		// Authorization: Bearer abc, and the scheme with a token elsewhere
		{regexp.MustCompile(`(?i)\b(authorization|x-registry-auth|cookie|set-cookie)(["']?\s*[:=]\s*["'\[]?)(?:(bearer|basic)\s+)?[^\s"',\]]+`), "${1}${2}" + Hidden},
		{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[a-z0-9+/_.~=-]{16,}`), "${1} " + Hidden},
		// ?token=abc&sig=def
		{regexp.MustCompile(`(?i)([?&]` + secretNames + `=)[^&\s"']+`), "${1}" + Hidden},
		// {"token":"abc"}, also where the JSON is quoted once more
		{regexp.MustCompile(`(?i)(\\?"` + secretNames + `\\?"\s*:\s*\\?")[^"\\]+`), "${1}" + Hidden},
	}}
}

// Text returns text without credentials. Hosts, paths and names stay readable.
func (s *Scrubber) Text(text string) string {
	var clean strings.Builder
	from := 0
	for _, plain := range s.plain.FindAllStringIndex(text, -1) {
		clean.WriteString(s.hide(text[from:plain[0]]))
		clean.WriteString(text[plain[0]:plain[1]])
		from = plain[1]
	}
	clean.WriteString(s.hide(text[from:]))
	return clean.String()
}

func (s *Scrubber) hide(text string) string {
	for _, r := range s.rules {
		text = r.find.ReplaceAllString(text, r.put)
	}
	return text
}
