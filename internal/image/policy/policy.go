// Package policy decides which images a node may use, by a file in the format of
// containers-policy.json(5) and by signatures that cosign and GPG make. It reads the file and the keys that
// the file names. It knows no registry and no store: its callers bring the signatures.
package policy

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/distribution/reference"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/names"
)

// maxFile bounds the policy file and each key file, in bytes.
const maxFile = 4 << 20

// The types of requirements.
const (
	Accept         = "insecureAcceptAnything"
	Reject         = "reject"
	SignedBy       = "signedBy"
	SigstoreSigned = "sigstoreSigned"
)

// Policy is a policy file.
type Policy struct {
	// File is where it was read.
	File string
	// fallback holds where no scope does.
	fallback []requirement
	// docker has the requirements of registries by their scope; "" is the scope of all.
	docker map[string][]requirement
}

// Read reads a policy file. It is strict: a field that is unknown, repeated or wrong makes the whole
// file Invalid, and so does a file that cannot be read: no image may be used by mistake.
func Read(file string) (*Policy, error) {
	data, err := readFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the image policy: %w", err)
	}
	p := &Policy{File: file}
	if err := p.parse(data); err != nil {
		return nil, fmt.Errorf("image policy %s: %w: %w", file, err, errs.Invalid)
	}
	return p, nil
}

// readFile reads a regular file of bounded size.
func readFile(file string) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file: %w", file, errs.Invalid)
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s has %d bytes, at most %d are read: %w", file, info.Size(), maxFile, errs.Invalid)
	}
	return os.ReadFile(file)
}

// Rules are the requirements that an image must meet, all of them.
type Rules struct {
	// File and Scope are where they stand. Scope is "default" for the default of the whole file, and
	// docker:SCOPE otherwise.
	File, Scope string

	requirements []requirement
}

// For returns the rules of a reference: those of the most specific scope that matches.
func (p *Policy) For(named reference.Named) Rules {
	for _, scope := range Scopes(named) {
		if list, ok := p.docker[scope]; ok {
			return Rules{File: p.File, Scope: "docker:" + scope, requirements: list}
		}
	}
	return p.Nameless()
}

// Nameless returns the rules of an image without a name.
func (p *Policy) Nameless() Rules {
	return Rules{File: p.File, Scope: "default", requirements: p.fallback}
}

// Scopes lists the scopes of a reference, the most specific one first: the reference, its
// repository, the namespaces above, the host, wildcards for the domains of the host, and "" for all. All are in the form
// of names.Scope: another spelling of a host leads to the same registry, and must not lead to other rules.
func Scopes(named reference.Named) []string {
	name := names.Scope(named.Name())
	scopes := []string{}
	if full := names.Scope(named.String()); full != name {
		scopes = append(scopes, full)
	}
	for at := name; ; {
		scopes = append(scopes, at)
		slash := strings.LastIndexByte(at, '/')
		if slash < 0 {
			break
		}
		at = at[:slash]
	}
	// A wildcard matches a host whatever its port is.
	host, _, _ := strings.Cut(name, "/")
	host, _, _ = strings.Cut(host, ":")
	for {
		_, parent, ok := strings.Cut(host, ".")
		if !ok {
			return append(scopes, "")
		}
		scopes = append(scopes, "*."+parent)
		host = parent
	}
}

// NeedsSignatures reports whether signatures decide. If not, Check needs none.
func (r Rules) NeedsSignatures() bool {
	return !r.Wants(Reject) && (r.Wants(SigstoreSigned) || r.Wants(SignedBy))
}

// Wants reports whether one of the requirements has a type.
func (r Rules) Wants(kind string) bool {
	return slices.ContainsFunc(r.requirements, func(one requirement) bool { return one.kind == kind })
}
