package migrations

// UpFiles and CheckServer are what Up does with the embedded files, and with
// the server's version number.
var (
	UpFiles     = up
	CheckServer = checkServer
)
