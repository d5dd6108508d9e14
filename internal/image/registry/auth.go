package registry

import (
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// Auth is the credential for a registry, as CRI has it. The zero
// value is anonymous.
type Auth struct {
	Username, Password           string
	Auth                         string
	ServerAddress                string
	IdentityToken, RegistryToken string
}

// credentials in the form in which they are used. An identity token is a secret
// without a user.
type credentials struct {
	user, secret string
	bearer       string
}

// credentials are those for a registry; none, if they are for another one.
func (a Auth) credentials(domain string) (credentials, error) {
	if a.ServerAddress != "" && !sameRegistry(a.ServerAddress, domain) {
		return credentials{}, nil
	}
	switch {
	case a.Username != "":
		return credentials{user: a.Username, secret: a.Password}, nil
	case a.IdentityToken != "":
		return credentials{secret: a.IdentityToken}, nil
	case a.Auth != "":
		user, password, err := decodeAuth(a.Auth)
		return credentials{user: user, secret: password}, err
	case a.RegistryToken != "":
		return credentials{bearer: a.RegistryToken}, nil
	}
	return credentials{}, nil
}

func decodeAuth(encoded string) (user, password string, err error) {
	data, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	if err == nil {
		// Some tools pad the decoded text with zeros.
		var ok bool
		if user, password, ok = strings.Cut(strings.TrimRight(string(data), "\x00"), ":"); ok {
			return user, password, nil
		}
	}
	return "", "", fmt.Errorf("field auth of the registry credentials: want base64 of username:password: %w", errs.Invalid)
}

// sameRegistry reports whether an address as docker's config file has it
// ("https://index.docker.io/v1/") means the registry of domain.
func sameRegistry(address, domain string) bool {
	host := address
	if _, rest, ok := strings.Cut(host, "://"); ok {
		host = rest
	}
	host, _, _ = strings.Cut(host, "/")
	return canonical(host) == canonical(domain)
}

func canonical(host string) string {
	switch host = strings.ToLower(host); host {
	case "index.docker.io", "registry-1.docker.io":
		return "docker.io"
	default:
		return host
	}
}
