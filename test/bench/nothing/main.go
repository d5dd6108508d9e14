// Command nothing does nothing. Its start and end are what any Go program costs on a machine, berth's init among them.
package main

func main() {}
