package dockerstore

import (
	"fmt"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/pkg/authconfig"
	registryapi "github.com/moby/moby/api/types/registry"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/registry"
)

// hubAddress is how engines call the registry docker.io.
const hubAddress = "https://index.docker.io/v1/"

// authHeader encodes the credentials for the registry of named, as an engine takes them; "" for
// none. The engine decodes no "auth" field, and uses credentials for the registry of
// serveraddress alone.
func authHeader(named reference.Named, auth image.Auth) (string, error) {
	domain := reference.Domain(named)
	credentials, err := registry.Auth(auth).Credentials(domain)
	if err != nil || credentials == (registry.Credentials{}) {
		return "", err
	}
	config := registryapi.AuthConfig{ServerAddress: domain, RegistryToken: credentials.Bearer}
	if domain == "docker.io" {
		config.ServerAddress = hubAddress
	}
	if credentials.User == "" {
		config.IdentityToken = credentials.Secret
	} else {
		config.Username, config.Password = credentials.User, credentials.Secret
	}
	header, err := authconfig.Encode(config)
	if err != nil {
		return "", fmt.Errorf("cannot encode the registry credentials: %w", err)
	}
	return header, nil
}
