// Package trees has the tests that compare what a container sees of an image with what umoci unpacks of it: each name with its
// type, bytes, mode, owner, device number, link target, extended attributes, times, and the names that it shares its inode with.
// The images are those of a corpus of layers, and those that docker, podman, buildah, umoci and ko make. Differences that are
// decided are in tables of the tests with their reasons; docs/explain/image-files.md states them for users.
package trees
