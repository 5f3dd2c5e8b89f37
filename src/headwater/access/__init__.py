"""Who is it, and what may they do: logins (`scram`), their registry (`clients`), rules (`acl`) and limits (`quota`)."""
