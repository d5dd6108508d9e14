// Package names reads names of images: references as people and kubelets write them, and
// ids. It knows no store.
package names

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
)

// Parse makes a full reference of what people and kubelets write: the domain, "library/"
// and the tag "latest" are filled in. A reference with a digest loses its tag, as the digest
// decides. Kind Invalid.
func Parse(ref string) (reference.Named, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return nil, fmt.Errorf("image reference %q: %w: %w", ref, err, errs.Invalid)
	}
	return named, nil
}

// Scope returns the form of a name, or of the first elements of one, that names with the same registry have in common: the
// host in lower case and without the port 443, which is that of https. A host is the same in any of these forms.
func Scope(name string) string {
	host, rest, more := strings.Cut(name, "/")
	host = strings.TrimSuffix(strings.ToLower(host), ":443")
	if !more {
		return host
	}
	return host + "/" + rest
}

// IsShort reports whether a reference that Parse accepts names no registry. Candidates says what it means.
func IsShort(ref string) bool {
	first, _, slash := strings.Cut(ref, "/")
	return !slash || first != "localhost" && !strings.ContainsAny(first, ".:") && first == strings.ToLower(first)
}

// Candidates are the full references that a reference can mean, in the order in which they are tried: that of Parse,
// or, for a reference without a registry, one for each of registries, if there are some. Kind Invalid.
func Candidates(ref string, registries []string) ([]reference.Named, error) {
	named, err := Parse(ref)
	if err != nil {
		return nil, err
	}
	if len(registries) == 0 || !IsShort(ref) {
		return []reference.Named{named}, nil
	}
	all := make([]reference.Named, 0, len(registries))
	for _, host := range registries {
		named, err := Parse(host + "/" + ref)
		if err != nil {
			return nil, err
		}
		all = append(all, named)
	}
	return all, nil
}

// WithDigest is the reference of the same repository by digest.
func WithDigest(named reference.Named, dgst digest.Digest) string {
	return reference.TrimNamed(named).Name() + "@" + dgst.String()
}

var idPattern = regexp.MustCompile(`^(sha256:)?[0-9a-f]{1,64}$`)

// IDPrefix reports whether ref can be (the beginning of) an image id, and returns it with
// its algorithm.
func IDPrefix(ref string) (string, bool) {
	if !idPattern.MatchString(ref) {
		return "", false
	}
	if !strings.HasPrefix(ref, "sha256:") {
		ref = "sha256:" + ref
	}
	return ref, true
}

// IsID reports whether a recorded name is an image's id and no reference: a registry may be
// called sha256, and have a port.
func IsID(name string) bool {
	return strings.HasPrefix(name, "sha256:") && !strings.Contains(name, "/")
}

// HasDigest reports whether a recorded reference names a digest.
func HasDigest(name string) bool { return strings.Contains(name, "@") }

// platformMark separates a name from a platform in a key. No reference has it.
const platformMark = "#"

// Key is how the records of a store call a name whose image is for a platform, "" for the node's. The key of a key is the
// key itself.
func Key(name, platform string) string {
	if platform == "" || IsID(name) || strings.Contains(name, platformMark) {
		return name
	}
	return name + platformMark + platform
}

// OfKey returns the name and the platform of a key.
func OfKey(key string) (name, platform string) {
	name, platform, _ = strings.Cut(key, platformMark)
	return name, platform
}
