package render

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"

	"github.com/berthrun/berth/internal/provision/tasks"
)

// wholeJSON is the file of keys on a machine where nobody else has written it.
func wholeJSON(j tasks.JSONKeys) tasks.File {
	data, err := json.MarshalIndent(j.Set, "", "  ")
	if err != nil {
		data = fmt.Appendf(nil, "%q", err.Error()) // the node file's values always marshal
	}
	return tasks.File{M: j.M, Path: j.Path, Content: string(data) + "\n", Mode: j.Mode}
}

func orMode(mode, otherwise fs.FileMode) fs.FileMode { return cmp.Or(mode, otherwise) }

// among is "optional" for a member of list, as the shell functions take it.
func among(name string, list []string) string {
	if slices.Contains(list, name) {
		return "optional"
	}
	return ""
}
