// Package registries is how node files and cluster files describe where images come from. It
// knows the fields, their checks, and the hosts.toml that follows from them. It reads no file
// that a description names, and writes none.
package registries

// Registry says where images of one registry come from.
type Registry struct {
	Host    string   `json:"host" help:"Registry as image names have it; \"*\" is every registry that has no entry of its own." required:"yes" example:"docker.io"`
	Server  string   `json:"server" help:"URL of the registry itself, asked after all mirrors. Empty: https:// and the host." example:"https://registry-1.docker.io"`
	Mirrors []Mirror `json:"mirrors" help:"Mirrors in the order in which they are asked."`
	// Access is that of the registry itself.
	Access
}

// Mirror is one mirror of a registry.
type Mirror struct {
	URL          string   `json:"url" help:"URL with its scheme. The node must reach it: localhost is the node itself." required:"yes" example:"https://mirror.example"`
	Capabilities []string `json:"capabilities" help:"What the mirror may be asked for. Empty: pull and resolve." oneof:"pull resolve push" example:"[pull, resolve]"`
	OverridePath bool     `json:"overridePath" help:"The URL has the whole path; no /v2 is added."`
	Access
}

// Access is how a node reaches one server. Descriptions are kept in files, and those that use
// no client certificate or credentials do not name these fields there.
type Access struct {
	CA          []string `json:"ca" help:"Files with certificates of authorities that sign for the server." example:"[/etc/ssl/registry-ca.pem]"`
	ClientCert  string   `json:"clientCert,omitempty" help:"Client certificate for the server." example:"/etc/ssl/registry.cert"`
	ClientKey   string   `json:"clientKey,omitempty" help:"Key of the client certificate. Empty: it is in the same file." example:"/etc/ssl/registry.key"`
	SkipVerify  bool     `json:"skipVerify" help:"Do not verify the server's certificate."`
	Credentials string   `json:"credentials,omitempty" help:"File with \"user:password\", an Authorization header that begins with \"Bearer \" or \"Basic \", or a config.json of docker that names the host. berth reads it when it applies the description, and only root may read what berth writes of it." example:"/etc/berth/registry.auth"`
}

// SetDefaults gives mirrors without capabilities the usual ones.
func SetDefaults(all []Registry) {
	for i := range all {
		for j := range all[i].Mirrors {
			if m := &all[i].Mirrors[j]; len(m.Capabilities) == 0 {
				m.Capabilities = []string{"pull", "resolve"}
			}
		}
	}
}
