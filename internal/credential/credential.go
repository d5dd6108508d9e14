// Package credential reads the files with credentials that node files and cluster files name, for
// registries and for the servers of assets. What is in them goes into requests and into
// files that only root may read, and into no message.
package credential

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// File is the content of one file: one Authorization header, or one per host.
type File struct {
	header string
	hosts  map[string]string // nil unless the file names hosts
}

// Parse reads a file's text: "user:password", a header that begins with "Basic " or
// "Bearer ", or a config.json of docker. name is for errors, which never quote the text.
func Parse(name, text string) (File, error) {
	text = strings.TrimSpace(text)
	switch {
	case strings.HasPrefix(text, "{"):
		hosts, err := dockerConfig(name, text)
		return File{hosts: hosts}, err
	case strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return File{}, fmt.Errorf("credentials: %s has more than one line; want user:password: %w", name, errs.Invalid)
	case strings.HasPrefix(text, "Bearer "), strings.HasPrefix(text, "Basic "):
		return File{header: text}, nil
	case strings.Contains(text, ":"):
		return File{header: basic(text)}, nil
	}
	return File{}, fmt.Errorf("credentials: %s: want user:password, \"Basic …\", \"Bearer …\" or a config.json of docker: %w", name, errs.Invalid)
}

// Header is the Authorization header for a host with its port, "" for none. own: the file was given
// for this host. A header without a host is for that host alone.
func (f File) Header(host string, own bool) string {
	switch {
	case f.hosts != nil:
		return f.hosts[Host(host)]
	case own:
		return f.header
	}
	return ""
}

// Hosts lists the hosts that the file names; nil where it names none.
func (f File) Hosts() []string { return slices.Sorted(maps.Keys(f.hosts)) }

// Basic takes a header of user and password apart.
func Basic(header string) (user, password string, ok bool) {
	coded, found := strings.CutPrefix(header, "Basic ")
	text, err := base64.StdEncoding.DecodeString(coded)
	if !found || err != nil {
		return "", "", false
	}
	return strings.Cut(string(text), ":")
}

func basic(pair string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(pair)) }

// dockerConfig reads the headers by host.
func dockerConfig(name, text string) (map[string]string, error) {
	var config struct {
		Auths map[string]struct {
			Auth, Username, Password, IdentityToken, RegistryToken string
		}
	}
	if json.Unmarshal([]byte(text), &config) != nil { // its message may quote the text
		return nil, fmt.Errorf("credentials: %s: want a config.json of docker, or user:password: %w", name, errs.Invalid)
	}
	hosts := map[string]string{}
	for key, entry := range config.Auths {
		header := ""
		switch {
		case entry.RegistryToken != "":
			header = "Bearer " + entry.RegistryToken
		case entry.Auth != "":
			header = "Basic " + entry.Auth
		case entry.Username != "":
			header = basic(entry.Username + ":" + entry.Password)
		default: // in a helper or a keychain that only docker can query
			return nil, fmt.Errorf("credentials: %s has no auth for %q; want it in the file, not in a credential helper: %w", name, key, errs.Unsupported)
		}
		if _, _, ok := Basic(header); strings.HasPrefix(header, "Basic ") && !ok || strings.ContainsAny(header, "\r\n") {
			return nil, fmt.Errorf("credentials: %s: auth for %q does not hold it; want user:password in base64: %w", name, key, errs.Invalid)
		}
		hosts[Host(key)] = header
	}
	return hosts, nil
}

// Host is the host of a key of config.json, which may be a URL. The names of Docker's
// registry are one.
func Host(key string) string {
	if _, rest, found := strings.Cut(key, "://"); found {
		key = rest
	}
	host, _, _ := strings.Cut(key, "/")
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		return "docker.io"
	}
	return strings.ToLower(host)
}
