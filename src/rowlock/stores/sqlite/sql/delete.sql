DELETE FROM _jobs WHERE n = ?
