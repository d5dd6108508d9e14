package ocispec

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// User is the user that the container runs as.
type User struct {
	UID, GID uint32
	// Groups are all groups of the process, GID first.
	Groups []uint32
	// Home is the user's home directory, "" when the image does not name one.
	Home string
}

// Limits of what is read from an image's passwd and group files.
const (
	// MaxUserFile is how much of such a file is looked at; the rest is ignored.
	MaxUserFile = 4 << 20
	// maxUserLine is the longest line that is looked at; longer ones are skipped.
	maxUserLine = 64 << 10
)

// userQuery is what a request asks for, not yet looked up. An id is used where its
// name is "".
type userQuery struct {
	// field is where it is asked for.
	field       string
	name, group string
	uid, gid    uint32
	// groupSet is true when group or gid was asked for.
	groupSet bool
}

// ResolveUser finds the user that the request (or else the image) names in the
// image's passwd and group files, which may be nil. A number is never looked up as
// a name, and what looks like a number but is none in range is refused: else an
// image could call its root "4294967297". The groups that the image puts the user in
// are left out with the policy Strict.
func ResolveUser(config *runtimeapi.ContainerConfig, image imagespec.ImageConfig, passwd, group []byte) (User, error) {
	query, err := userOf(config, image)
	if err != nil {
		return User{}, err
	}
	user := User{UID: query.uid, GID: query.gid}
	name := query.name
	entry, err := findUser(passwd, query)
	switch {
	case err != nil:
		return User{}, err
	case entry != nil:
		user.UID, user.Home, name = entry.uid, entry.home, entry.name
		if !query.groupSet {
			user.GID = entry.gid
		}
	case query.name != "":
		return User{}, fielderror.Invalid(query.field, "unable to find user %s: no matching entries in passwd file", query.name)
	}
	if query.group != "" {
		gid, ok := findGroup(group, query.group)
		if !ok {
			return User{}, fielderror.Invalid(query.field, "unable to find group %s: no matching entries in group file", query.group)
		}
		user.GID = gid
	}
	user.Groups = []uint32{user.GID}
	seen := map[uint32]bool{user.GID: true}
	add := func(gid uint32) {
		if !seen[gid] {
			seen[gid] = true
			user.Groups = append(user.Groups, gid)
		}
	}
	if request.Security(config).GetSupplementalGroupsPolicy() == runtimeapi.SupplementalGroupsPolicy_Merge {
		for _, gid := range groupsOf(group, name) {
			add(gid)
		}
	}
	for _, gid := range request.Security(config).GetSupplementalGroups() {
		add(uint32(gid)) // in range: check.Container
	}
	if n := len(user.Groups); n > request.MaxGroups {
		return User{}, fielderror.Invalid("config.linux.security_context.supplemental_groups",
			"%d groups, the user's own among them, are more than the kernel's %d", n, request.MaxGroups)
	}
	return user, nil
}

// userOf reads the request's user, or the image's where the request has none.
func userOf(config *runtimeapi.ContainerConfig, image imagespec.ImageConfig) (query userQuery, err error) {
	security := request.Security(config)
	const field = "config.linux.security_context."
	query.field = field + "run_as_user"
	switch {
	case security.GetRunAsUser() != nil:
		query.uid = uint32(security.GetRunAsUser().GetValue())
	case security.GetRunAsUsername() != "":
		query.field = field + "run_as_username"
		if query.name, query.uid, err = request.ParseUser(query.field, security.GetRunAsUsername()); err != nil {
			return userQuery{}, err
		}
	default:
		return imageUser(image.User)
	}
	if gid := security.GetRunAsGroup(); gid != nil {
		query.gid, query.groupSet = uint32(gid.GetValue()), true
	}
	return query, nil
}

// imageUser reads "user", "uid", "user:group" and so on.
func imageUser(value string) (query userQuery, err error) {
	const field = "config.image.image: the image's user"
	query.field = field
	if value == "" {
		return query, nil
	}
	user, group, hasGroup := strings.Cut(value, ":")
	if user != "" {
		if query.name, query.uid, err = request.ParseUser(field, user); err != nil {
			return userQuery{}, err
		}
	}
	if hasGroup && group != "" {
		query.groupSet = true
		if query.group, query.gid, err = request.ParseUser(field, group); err != nil {
			return userQuery{}, err
		}
	}
	return query, nil
}

type passwdEntry struct {
	name, home string
	uid, gid   uint32
}

// findUser returns the first entry that the query matches, nil when there is none.
// An entry that is asked for by name must be whole.
func findUser(passwd []byte, query userQuery) (*passwdEntry, error) {
	for fields := range fileLines(passwd) {
		if len(fields) < 4 {
			continue
		}
		uid, uidErr := strconv.ParseUint(fields[2], 10, 31)
		gid, gidErr := strconv.ParseUint(fields[3], 10, 31)
		if query.name != "" && fields[0] != query.name {
			continue
		}
		if query.name == "" && (uidErr != nil || uint32(uid) != query.uid) {
			continue
		}
		if uidErr != nil || gidErr != nil {
			return nil, fielderror.Invalid(query.field, "%s: its entry in the image's passwd file has no valid ids", fields[0])
		}
		entry := &passwdEntry{name: fields[0], uid: uint32(uid), gid: uint32(gid)}
		if len(fields) > 5 {
			entry.home = cleanHome(fields[5])
		}
		return entry, nil
	}
	return nil, nil
}

// cleanHome drops what is no directory name: it goes into the environment.
func cleanHome(home string) string {
	if !strings.HasPrefix(home, "/") || request.HasControl(home) {
		return ""
	}
	return home
}

func findGroup(group []byte, name string) (uint32, bool) {
	for fields := range fileLines(group) {
		if len(fields) < 3 || fields[0] != name {
			continue
		}
		if gid, err := strconv.ParseUint(fields[2], 10, 31); err == nil {
			return uint32(gid), true
		}
	}
	return 0, false
}

// groupsOf returns the groups that the user called name is a member of.
func groupsOf(group []byte, name string) []uint32 {
	if name == "" {
		return nil
	}
	var gids []uint32
	seen := map[uint32]bool{}
	for fields := range fileLines(group) {
		if len(fields) < 4 || !slices.Contains(strings.Split(fields[3], ","), name) {
			continue
		}
		gid, err := strconv.ParseUint(fields[2], 10, 31)
		if err != nil || seen[uint32(gid)] {
			continue
		}
		seen[uint32(gid)] = true
		gids = append(gids, uint32(gid))
		if len(gids) == request.MaxGroups {
			break
		}
	}
	return gids
}

// fileLines yields the fields of each line, colon separated. Lines that are too
// long, and all that lies beyond MaxUserFile, are left out.
func fileLines(file []byte) func(yield func([]string) bool) {
	if len(file) > MaxUserFile {
		file = file[:MaxUserFile]
		file = file[:bytes.LastIndexByte(file, '\n')+1]
	}
	return func(yield func([]string) bool) {
		for line := range bytes.Lines(file) {
			line = bytes.TrimSpace(line)
			if len(line) == 0 || len(line) > maxUserLine || line[0] == '#' {
				continue
			}
			if !yield(strings.Split(string(line), ":")) {
				return
			}
		}
	}
}
