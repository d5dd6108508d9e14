package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// digestForm is the prefix of a digest of the cluster file alone. Digests of older versions of
// berth have no such prefix.
const digestForm = "2-"

// described has a container's settings from the cluster file. It excludes the environment of the
// caller: proxies of another shell are no reason to replace a node.
type described struct {
	Name, Role, Pool, Image, Search string
	Privileged                      bool
	Tmpfs                           []string
	Volumes                         []Volume
	Mounts                          []Mount
	Ports                           []Port
}

// searchVariable passes networking.dnsSearch to nodes.
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

// digest is equal for containers that need not be created again to become each other.
func (c Container) digest() string { return digestForm + sum(c.described()) }

// olderDigest is the digest that earlier versions of berth gave the container. It covers the
// environment of the caller, except for the destinations that are reached without a proxy.
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
		// A Container has only strings and numbers.
		panic(fmt.Sprintf("a container has no JSON form: %v", err))
	}
	hash := sha256.Sum256(text)
	return hex.EncodeToString(hash[:])
}

// has reports whether a container's digest is that of c. before is the container of the cluster's
// former plan, nil if it had none: for a digest of an older berth, from another environment, it
// says what was planned.
func (c Container) has(digest string, before *Container) bool {
	if strings.HasPrefix(digest, digestForm) {
		return digest == c.digest()
	}
	return digest == c.olderDigest() || before != nil && len(Differences(*before, c)) == 0
}
