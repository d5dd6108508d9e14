package provision

import (
	"context"
	"io"
	"net/url"
	"strings"
)

// AssetRef is an asset: something to fetch, known by its hash.
type AssetRef struct {
	// Name is for people: "containerd".
	Name string
	// Sources are tried in order: an absolute path of a file or directory,
	// http(s)://…, oci://host/repository[:tag|@digest].
	Sources []string
	// Digest is sha256:… or sha512:… of the file (of an OCI reference: of the layer or
	// of the manifest). Required, but for a directory.
	Digest string
	// Format is tar, tar.gz, tar.xz, tar.zst, zip or raw; empty: by content.
	Format string
	// Access is how the servers among Sources are reached.
	Access Access `json:",omitzero"`
}

// Shown are the sources as people may see them: without a password, and without the
// signatures that are in queries.
func (r AssetRef) Shown() string {
	shown := make([]string, len(r.Sources))
	for i, source := range r.Sources {
		shown[i] = ShowSource(source)
	}
	return strings.Join(shown, ", ")
}

// FirstServer is the first source that is not a path; "" when all are paths.
func (r AssetRef) FirstServer() string {
	for _, source := range r.Sources {
		if !strings.HasPrefix(source, "/") {
			return source
		}
	}
	return ""
}

// ShowSource is one source as people may see it.
func ShowSource(source string) string {
	u, err := url.Parse(source)
	if err != nil || u.Scheme == "" || u.User == nil && u.RawQuery == "" {
		return source
	}
	signed := u.RawQuery != ""
	u.RawQuery = ""
	shown := u.Redacted()
	if signed {
		shown += "?…"
	}
	return shown
}

// Access names files on the machine where berth runs. They are read when an asset is fetched. No
// plan and no record contains their content.
type Access struct {
	// CA are certificates of authorities that are trusted in addition to the machine's own.
	CA []string
	// ClientCert and ClientKey are shown to a server that asks for a certificate. If the key is
	// empty, the file of the certificate has it.
	ClientCert, ClientKey string
	// Credentials is a file as package credential reads it. An entry without a host is for the host
	// of the first source that has one, and for no other.
	Credentials string
}

// None reports whether nothing is named.
func (a Access) None() bool {
	return len(a.CA) == 0 && a.ClientCert == "" && a.ClientKey == "" && a.Credentials == ""
}

// Single is how a file lies alone in an asset.
type Single string

// The ways; empty is an archive.
const (
	SingleRaw    Single = "raw"
	SinglePacked Single = "packed"
)

// Member is one regular file of an asset, or a link to one.
type Member struct {
	// Path within the archive, clean, without a leading "/"; for raw the source's base name.
	Path string `json:"path"`
	// Digest of the content, "sha256:…".
	Digest string `json:"digest"`
	// From is the path of the member that holds the content, for a link to it.
	From string `json:"from,omitempty"`
	Size int64  `json:"size"`
	// Single is set for the one file of an asset that is not an archive, raw or compressed. Its
	// Path is that of the source, so it differs between sources of the same content.
	Single Single `json:"single,omitempty"`
	// Exec reports whether any execute bit is set in the archive.
	Exec bool `json:"exec,omitempty"`
}

// Assets fetches, checks and keeps assets.
type Assets interface {
	// Members lists what the asset holds if that is known without fetching;
	// errs.NotFound otherwise.
	Members(ref AssetRef) ([]Member, error)
	// Fetch makes the asset readable: from the cache, or else from the first source that has it. A
	// wrong hash is errs.Invalid and names the source and both hashes.
	Fetch(ctx context.Context, ref AssetRef) ([]Member, error)
	// Read calls f with each of members and its content, in the order of the archive. The
	// asset is fetched if it must be.
	Read(ctx context.Context, ref AssetRef, members []string, f func(member string, content io.Reader) error) error
}
