package main

import (
	"fmt"
	"regexp"
	"strings"
)

// version is a version of berth: MAJOR.MINOR.PATCH, for a pre-release with -NAME.NUMBER.
type version struct {
	text string
	// core is MAJOR.MINOR.PATCH; name and number are those of a pre-release.
	core, name, number string
}

// prereleases are the names of pre-releases, as apk has them: they sort before the release.
var prereleases = map[string]string{"alpha": "_alpha", "beta": "_beta", "dev": "_pre", "rc": "_rc"}

var versionPattern = regexp.MustCompile(`^(\d+\.\d+\.\d+)(?:-([a-z]+)\.(\d+)(?:\.dev\.\d+)?)?$`)

func parseVersion(text string) (version, error) {
	found := versionPattern.FindStringSubmatch(text)
	if found == nil {
		return version{}, fmt.Errorf("version %q is malformed; want 1.2.3 or 1.2.3-rc.1", text)
	}
	v := version{text: text, core: found[1], name: found[2], number: found[3]}
	if _, known := prereleases[v.name]; v.name != "" && !known {
		return version{}, fmt.Errorf("version %q: pre-release %q is unknown; want alpha, beta, dev or rc", text, v.name)
	}
	return v, nil
}

// tilde is the version for dpkg and rpm, in which a tilde sorts before the end.
func (v version) tilde() string { return strings.Replace(v.text, "-", "~", 1) }

// apk is the version for apk, which has no tilde.
func (v version) apk() string {
	if v.name == "" {
		return v.core
	}
	return v.core + prereleases[v.name] + v.number
}
