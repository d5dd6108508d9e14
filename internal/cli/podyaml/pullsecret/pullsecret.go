// Package pullsecret reads registry credentials from Secrets, and finds those of an image.
package pullsecret

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Credential is a login for the images below a place of a registry.
type Credential struct {
	// Place is a registry, with or without a path of its repositories.
	Place              string
	Username, Password string
	IdentityToken      string
}

// dockerEntry is one registry of a docker configuration.
type dockerEntry struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
}

// dockerHub is where images live whose names have no registry.
const dockerHub = "docker.io"

// Credentials reads a Secret of either docker type.
func Credentials(s *corev1.Secret) ([]Credential, error) {
	var config struct {
		Auths map[string]dockerEntry `json:"auths"`
	}
	var err error
	switch {
	case s.Data[corev1.DockerConfigJsonKey] != nil:
		err = json.Unmarshal(s.Data[corev1.DockerConfigJsonKey], &config)
	case s.Data[corev1.DockerConfigKey] != nil:
		err = json.Unmarshal(s.Data[corev1.DockerConfigKey], &config.Auths)
	default:
		return nil, fmt.Errorf("Secret %s has neither %s nor %s", s.Name, corev1.DockerConfigJsonKey, corev1.DockerConfigKey)
	}
	if err != nil {
		// The error of the parser could quote what it read.
		return nil, fmt.Errorf("Secret %s is not a docker configuration", s.Name)
	}
	var out []Credential
	for place, entry := range config.Auths {
		c := Credential{Place: registryPlace(place), Username: entry.Username, Password: entry.Password, IdentityToken: entry.IdentityToken}
		if entry.Auth != "" {
			plain, err := base64.StdEncoding.DecodeString(entry.Auth)
			name, password, ok := strings.Cut(string(plain), ":")
			if err != nil || !ok {
				return nil, fmt.Errorf("Secret %s: the auth of %s is not base64 of NAME:PASSWORD", s.Name, place)
			}
			c.Username, c.Password = name, strings.TrimRight(password, "\x00")
		}
		out = append(out, c)
	}
	return out, nil
}

// registryPlace parses the forms of a registry: a URL, an API's path, the old names of Docker Hub.
func registryPlace(text string) string {
	text = strings.TrimPrefix(strings.TrimPrefix(text, "https://"), "http://")
	text = strings.TrimSuffix(text, "/")
	host, path, _ := strings.Cut(text, "/")
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		host = dockerHub
	}
	switch path {
	case "", "v1", "v2":
		return host
	}
	return host + "/" + path
}

// For reports whether a credential is for an image, and how well it fits: the longest
// place is the best.
func (c *Credential) For(image string) (fit int, ok bool) {
	first, _, hasPath := strings.Cut(image, "/")
	switch {
	case !hasPath:
		image = dockerHub + "/library/" + image
	case first != "localhost" && !strings.ContainsAny(first, ".:"):
		image = dockerHub + "/" + image
	}
	host, path, _ := strings.Cut(c.Place, "/")
	imageHost, imagePath, _ := strings.Cut(image, "/")
	if !matchHost(host, imageHost) {
		return 0, false
	}
	if path != "" && imagePath != path && !strings.HasPrefix(imagePath, path+"/") {
		return 0, false
	}
	return len(c.Place), true
}

// matchHost compares label by label; * in a pattern stands for any one label.
func matchHost(pattern, host string) bool {
	patterns, labels := strings.Split(pattern, "."), strings.Split(host, ".")
	if len(patterns) != len(labels) {
		return false
	}
	for i := range patterns {
		if patterns[i] != "*" && patterns[i] != labels[i] {
			return false
		}
	}
	return true
}
