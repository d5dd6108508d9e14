package policy

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/distribution/reference"
)

// The types of identities.
const (
	matchExact             = "matchExact"
	matchRepoDigestOrExact = "matchRepoDigestOrExact"
	matchRepository        = "matchRepository"
	exactReference         = "exactReference"
	exactRepository        = "exactRepository"
	remapIdentity          = "remapIdentity"
)

// identity is what a signature must say that it signs.
type identity struct {
	kind string
	// named is that of exactReference and exactRepository; prefix and signedPrefix are those of
	// remapIdentity.
	named                reference.Named
	prefix, signedPrefix string
}

func readIdentity(dec *json.Decoder, at string) (identity, error) {
	var id identity
	values := map[string]string{}
	err := object(dec, at, func(key, field string) (err error) {
		switch key {
		case "type", "dockerReference", "dockerRepository", "prefix", "signedPrefix":
			values[key], err = text(dec, field)
		default:
			err = unknown(field)
		}
		return err
	})
	if err != nil {
		return id, err
	}
	id.kind = values["type"]
	var wants []string
	switch id.kind {
	case matchExact, matchRepoDigestOrExact, matchRepository:
	case exactReference:
		wants = []string{"dockerReference"}
	case exactRepository:
		wants = []string{"dockerRepository"}
	case remapIdentity:
		wants = []string{"prefix", "signedPrefix"}
	default:
		return id, fmt.Errorf("field %s.type: %q: want %s, %s, %s, %s, %s or %s", at, id.kind, matchExact, matchRepoDigestOrExact,
			matchRepository, exactReference, exactRepository, remapIdentity)
	}
	for _, want := range wants {
		if values[want] == "" {
			return id, fmt.Errorf("field %s: a signedIdentity of type %s needs %s", at, id.kind, want)
		}
	}
	if len(values) != len(wants)+1 {
		return id, fmt.Errorf("field %s: a signedIdentity of type %s has the fields type %s, and no others", at, id.kind, strings.Join(wants, " "))
	}
	id.prefix, id.signedPrefix = values["prefix"], values["signedPrefix"]
	if name := values["dockerReference"] + values["dockerRepository"]; name != "" {
		id.named, err = reference.ParseNormalizedNamed(name)
		if err != nil {
			return id, fmt.Errorf("field %s: %q: %w", at, name, err)
		}
		if id.kind == exactReference && reference.IsNameOnly(id.named) {
			return id, fmt.Errorf("field %s.dockerReference: %q: want a tag or a digest", at, name)
		}
		if id.kind == exactRepository && !reference.IsNameOnly(id.named) {
			return id, fmt.Errorf("field %s.dockerRepository: %q: want a repository without a tag or a digest", at, name)
		}
	}
	return id, nil
}

// accepts says why a signature of the name claimed is not one of the image, "" if it is. image is nil
// for an image without a name.
func (id identity) accepts(image reference.Named, claimed string) string {
	signed, err := reference.ParseNormalizedNamed(claimed)
	if err != nil {
		return fmt.Sprintf("it is of %q, which is not the name of an image", claimed)
	}
	want, repository := id.wants(image)
	if want == nil {
		return noName
	}
	if repository && signed.Name() == want.Name() || !repository && !reference.IsNameOnly(signed) && signed.String() == want.String() {
		return ""
	}
	wanted := want.String()
	if repository {
		wanted = want.Name()
	}
	return fmt.Sprintf("it is of %s, and signedIdentity %s wants %s", signed, id.kind, wanted)
}

// noName is why an image without a name, or with one that cannot be mapped, meets no identity.
const noName = "the image has no name that it could be compared with"

// wants returns the name that a signature of an image must have, and whether its repository is enough. It
// is nil if the image has no name that could be compared.
func (id identity) wants(image reference.Named) (want reference.Named, repository bool) {
	want = image
	switch id.kind {
	case exactReference, exactRepository:
		want = id.named
	case remapIdentity:
		var err error
		if want, err = id.remap(image); err != nil {
			return nil, false
		}
	}
	if want == nil {
		return nil, false
	}
	_, byDigest := want.(reference.Digested)
	return want, id.kind == matchRepository || id.kind == exactRepository || byDigest && (id.kind == matchRepoDigestOrExact || id.kind == remapIdentity)
}

// describe says what a signature of an image must say that it signs.
func (id identity) describe(image reference.Named) string {
	want, repository := id.wants(image)
	switch {
	case want == nil:
		return fmt.Sprintf("%s: %s", id.kind, noName)
	case repository:
		return fmt.Sprintf("%s: the repository %s", id.kind, want.Name())
	}
	return fmt.Sprintf("%s: %s", id.kind, want)
}

// remap replaces the prefix of an image's name.
func (id identity) remap(image reference.Named) (reference.Named, error) {
	if image == nil {
		return nil, nil
	}
	rest, ok := strings.CutPrefix(image.String(), id.prefix)
	if !ok || rest != "" && !strings.ContainsAny(rest[:1], "/:@") || strings.HasPrefix(rest, ":") && !strings.Contains(id.prefix, "/") {
		return image, nil // another host that begins with it, or the same host with a port
	}
	return reference.ParseNormalizedNamed(id.signedPrefix + rest)
}
