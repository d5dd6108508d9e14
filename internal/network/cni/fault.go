package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/types"
)

// faultOf adds the file to the error of its content and, where the fault is at one place, the
// line and the column: "FILE:LINE:COLUMN". libcni's own errors count from the begin of one
// plugin, and after it has written that anew.
func faultOf(file string, err error) error {
	data, readErr := os.ReadFile(file)
	if readErr != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	offset, field := placeOf(data, filepath.Ext(file) == ".conflist")
	if offset < 0 {
		return fmt.Errorf("%s: %w", file, err)
	}
	before := data[:min(offset, len(data))]
	line, column := bytes.Count(before, []byte{'\n'})+1, len(before)-bytes.LastIndexByte(before, '\n')-1
	if field != "" {
		return fmt.Errorf("%s:%d:%d: field %s: %w", file, line, column, field, err)
	}
	return fmt.Errorf("%s:%d:%d: %w", file, line, column, err)
}

// placeOf returns the offset in bytes of the first fault of JSON or of a type, and the name of
// the field whose type is wrong; -1 when there is no such fault. Pure.
func placeOf(data []byte, isList bool) (offset int, field string) {
	var err error
	if isList {
		var list struct {
			Name        string             `json:"name"`
			CNIVersion  string             `json:"cniVersion"`
			CNIVersions []string           `json:"cniVersions"`
			Plugins     []types.PluginConf `json:"plugins"`
		}
		err = json.Unmarshal(data, &list)
	} else {
		err = json.Unmarshal(data, &types.PluginConf{})
	}
	var syntax *json.SyntaxError
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return int(syntax.Offset), ""
	case errors.As(err, &wrong):
		return int(wrong.Offset), wrong.Field
	}
	return -1, ""
}
