import type { TokenBody, TokenCreateBody } from "./api.ts";
import { List } from "./pages.ts";
import type { Abortable, Asked } from "./types.ts";
export declare class TokensClient {
    #private;
    /**
     * Create a token. Only this answer has its text, as `token`.
     * For a program: `{ name, scopes, topics?, expiresAt? }`. For a browser: `{ job }`, or `{ scope, scopeId, enqueue? }`, with `cancel?` and `seconds?`.
     */
    create({ signal, ...body }: Asked<TokenCreateBody> & Abortable): Promise<TokenBody & {
        token: string;
    }>;
    list({ signal }?: Abortable): List<TokenBody>;
    revoke(id: string, { signal }?: Abortable): Promise<void>;
}
