package labels

import "regexp"

// nameInUse matches the text with which engines refuse a name, up to the id of its owner:
//
//	Docker 1.13 and later: The container name "/a" is already in use by container "<id>".
//	Docker before 1.13:    The container name "/a" is already in use by container <id>.
//	podman:                the container name "a" is already in use by <id>.
//
// The API has no field for the id. A name cannot contain the text: names have no spaces.
var nameInUse = regexp.MustCompile(`container name "[^" ]*" is already in use by (?:container )?"?([0-9a-f]{64})\b`)

// Conflict reads the error of a creation or a renaming that an engine refused because of the
// name. dockerID is the engine's id of the container that has the name: 64 hex digits. ok is
// false for every other error. The kind is not asked: podman answers with a server's error.
func Conflict(err error) (dockerID string, ok bool) {
	if err == nil {
		return "", false
	}
	found := nameInUse.FindStringSubmatch(err.Error())
	if found == nil {
		return "", false
	}
	return found[1], true
}
