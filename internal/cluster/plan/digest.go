package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// digestForm begins a digest of the description alone. Digests of older versions of berth have no
// such beginning.
const digestForm = "2-"

// described is what a description says of a container. The environment of whoever runs berth has
// no part in it: proxies of another shell are no reason to replace a node.
type described struct {
	Name, Role, Pool, Image, Search string
	Privileged                      bool
	Tmpfs                           []string
	Volumes                         []Volume
	Mounts                          []Mount
	Ports                           []Port
}

// searchVariable hands networking.dnsSearch on to nodes.
const searchVariable = "KIND_DNS_SEARCH"

func (c Container) described() described {
	return described{
		Name: c.Name, Role: c.Role, Pool: c.Pool, Image: c.Image, Search: c.search(),
		Privileged: c.Privileged, Tmpfs: c.Tmpfs, Volumes: c.Volumes, Mounts: c.Mounts, Ports: c.Ports,
	}
}

// search is networking.dnsSearch; an empty list is not the same as none.
func (c Container) search() string {
	if value, there := c.Env[searchVariable]; there {
		return "=" + value
	}
	return ""
}

// digest is the same for containers that need not be made anew to become each other.
func (c Container) digest() string { return digestForm + sum(c.described()) }

// olderDigest is the digest that earlier versions of berth gave the container. It covers the
// environment of the caller, but for what is reached without a proxy.
func (c Container) olderDigest() string {
	c.Env = maps.Clone(c.Env)
	delete(c.Env, "NO_PROXY")
	delete(c.Env, "no_proxy")
	c.Sysctls = maps.Clone(c.Sysctls)
	delete(c.Sysctls, ipForward)
	c.Labels = maps.Clone(c.Labels)
	delete(c.Labels, LabelDigest)
	return sum(c)
}

func sum(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		// A Container is made of strings and numbers.
		panic(fmt.Sprintf("a container has no JSON form: %v", err))
	}
	hash := sha256.Sum256(text)
	return hex.EncodeToString(hash[:])
}

// has reports whether a digest that a container bears is that of c. before is the container that the
// cluster's former description planned, nil where it planned none: of a digest of an older
// berth, made in another environment, that description says what was planned.
func (c Container) has(digest string, before *Container) bool {
	if strings.HasPrefix(digest, digestForm) {
		return digest == c.digest()
	}
	return digest == c.olderDigest() || before != nil && len(Differences(*before, c)) == 0
}
