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

// Credentials in the form in which they are used; the zero value is none.
type Credentials struct {
	// User and Secret are a name and a password. An identity token is a secret without a user.
	User, Secret string
	// Bearer is a token that is sent as it is.
	Bearer string
}

// Credentials returns those for the registry of a domain: none, if they are for another one.
// Invalid when they cannot be decoded; the error quotes none of them.
func (a Auth) Credentials(domain string) (Credentials, error) {
	if a.ServerAddress != "" && !sameRegistry(a.ServerAddress, domain) {
		return Credentials{}, nil
	}
	switch {
	case a.Username != "":
		return Credentials{User: a.Username, Secret: a.Password}, nil
	case a.IdentityToken != "":
		return Credentials{Secret: a.IdentityToken}, nil
	case a.Auth != "":
		user, password, err := decodeAuth(a.Auth)
		return Credentials{User: user, Secret: password}, err
	case a.RegistryToken != "":
		return Credentials{Bearer: a.RegistryToken}, nil
	}
	return Credentials{}, nil
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
