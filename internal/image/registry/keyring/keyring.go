// Package keyring has the node's own credentials for registries: those in config files of
// docker, and those of the helper programs that such files name. It gives each host its own
// entry only, and no message quotes a secret.
package keyring

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/credential"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// Ring is the credentials of some files, the first file first.
type Ring struct {
	files   []file
	missing []string
}

// Credential is how a host's credentials are found. The secret is read by Get.
type Credential struct {
	// File and Key are the config file and its entry, as it is written there.
	File, Key string
	// Helper is the program that has the secret, "" if the file has it.
	Helper string

	entry entry
}

// Secret is a credential in the form in which it is used; the zero value is none.
type Secret struct {
	// User and Password are a name and a password. An identity token is a password without a user.
	User, Password string
	// Bearer is a token that is sent as it is.
	Bearer string
}

type file struct {
	path string
	// Keys are those of docker's format.
	Auths       map[string]entry  `json:"auths"`
	CredHelpers map[string]string `json:"credHelpers"`
	CredsStore  string            `json:"credsStore"`
}

type entry struct {
	Auth          string `json:"auth"`
	Username      string `json:"username"`
	Password      string `json:"password"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// maxFile bounds a config file, in bytes.
const maxFile = 16 << 20

// Read reads config files of docker. A file that does not exist has no credentials. Invalid for a
// file that is not of this format; the error does not quote it.
func Read(paths []string) (*Ring, error) {
	ring := &Ring{}
	for _, path := range paths {
		data, err := sysfile.ReadFile(path, maxFile)
		if errors.Is(err, fs.ErrNotExist) {
			ring.missing = append(ring.missing, path)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read the credentials of registries: %w", err)
		}
		f := file{path: path}
		if err := json.Unmarshal(data, &f); err != nil {
			return nil, fmt.Errorf("cannot read the credentials of registries: %s: %w", why(path, data, err), errs.Invalid)
		}
		ring.files = append(ring.files, f)
	}
	return ring, nil
}

// why says where and why a file is not of docker's format. The message of the error may quote a secret.
func why(path string, data []byte, err error) string {
	at := func(offset int64) string {
		before := data[:min(max(offset, 0), int64(len(data)))]
		return fmt.Sprintf("%s:%d", path, 1+bytes.Count(before, []byte("\n")))
	}
	var syntax *json.SyntaxError
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		want := "an object"
		if wrong.Type.Kind() == reflect.String {
			want = "a string"
		}
		return fmt.Sprintf("%s: %s: want %s, as docker's config.json has it", at(wrong.Offset), cmp.Or(wrong.Field, "the file"), want)
	case errors.As(err, &syntax) && syntax.Offset >= int64(len(data)):
		return at(syntax.Offset) + ": is not JSON: the file ends before its last value does; want docker's config.json"
	case errors.As(err, &syntax):
		last := bytes.LastIndexByte(data[:max(syntax.Offset-1, 0)], '\n')
		return fmt.Sprintf("%s: is not JSON: character %d of the line does not belong there; want docker's config.json", at(syntax.Offset-1), syntax.Offset-1-int64(last))
	}
	return path + ": is not docker's config.json"
}

// Faults are the entries whose credentials cannot be read. Images of their hosts cannot be pulled.
func (r *Ring) Faults() []error {
	var faults []error
	for _, f := range r.files {
		for _, key := range slices.Sorted(maps.Keys(f.Auths)) {
			c := &Credential{File: f.path, Key: key, entry: f.Auths[key]}
			if _, err := c.Get(context.Background()); err != nil {
				faults = append(faults, err)
			}
		}
	}
	return faults
}

// Missing are the files that do not exist.
func (r *Ring) Missing() []string {
	if r == nil {
		return nil
	}
	return r.missing
}

// Find returns the credential for a host with its port, nil if there is none. As docker does, it
// takes a helper for the host before the entry in the file.
func (r *Ring) Find(host string) *Credential {
	if r == nil {
		return nil
	}
	want := credential.Host(host)
	for _, f := range r.files {
		for key, name := range f.CredHelpers {
			if credential.Host(key) == want && name != "" {
				return &Credential{File: f.path, Key: key, Helper: helperPrefix + name}
			}
		}
		for key, e := range f.Auths {
			if credential.Host(key) != want {
				continue
			}
			if e != (entry{}) {
				return &Credential{File: f.path, Key: key, entry: e}
			}
			if f.CredsStore != "" { // docker leaves an empty entry for what the store has
				return &Credential{File: f.path, Key: key, Helper: helperPrefix + f.CredsStore}
			}
		}
		if f.CredsStore != "" {
			return &Credential{File: f.path, Key: want, Helper: helperPrefix + f.CredsStore}
		}
	}
	return nil
}

// String says where the credential comes from.
func (c *Credential) String() string {
	if c.Helper != "" {
		return fmt.Sprintf("%s, which %s names for %q", c.Helper, c.File, c.Key)
	}
	return fmt.Sprintf("%s, entry %q", c.File, c.Key)
}

// Get returns the secret, which a helper may have to be run for. A helper that ends with an error
// has none: helpers report an unknown server so.
func (c *Credential) Get(ctx context.Context) (Secret, error) {
	if c.Helper != "" {
		return runHelper(ctx, c.Helper, serverOf(c.Key))
	}
	e := c.entry
	switch {
	case e.RegistryToken != "":
		return Secret{Bearer: e.RegistryToken}, nil
	case e.IdentityToken != "":
		return Secret{Password: e.IdentityToken}, nil
	case e.Auth != "":
		data, err := base64.StdEncoding.DecodeString(e.Auth)
		user, password, ok := strings.Cut(strings.TrimRight(string(data), "\x00"), ":")
		if err != nil || !ok {
			return Secret{}, fmt.Errorf("credentials: auth of %s is not base64 of user:password: %w", c, errs.Invalid)
		}
		return Secret{User: user, Password: password}, nil
	}
	return Secret{User: e.Username, Password: e.Password}, nil
}

// serverOf is the name by which helpers know a registry.
func serverOf(key string) string {
	if credential.Host(key) == "docker.io" {
		return "https://index.docker.io/v1/"
	}
	return key
}
